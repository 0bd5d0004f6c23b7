r"""How stable each map is, told from what was published and the known noise alone, so that it costs nothing.

Results are drawn as they might have come out with other noise
(:meth:`capedjica.algorithms.ica.subject_level.SubjectMethod.draws`). The stability of a map
is the median, over the draws, of its correlation with itself: near 1 where another run would show the same
map, near 0 where the noise has swallowed it. In simulations it is close to the correlation with the true map
(``python -m benchmarks.utility reliability``). It speaks of the noise only: a map can be stable and mean
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from capedjica.algorithms.ica.maps import peak_order, pseudo_inverse
from capedjica.algorithms.parallel import one_thread
from capedjica.tools.arrays import FloatArray

# Maps below this are not to be presented as networks.
STABLE: Final = 0.8


def stability(unmixing: FloatArray, draws: Iterable[FloatArray]) -> FloatArray:
    """Return the stability of each map of :func:`capedjica.algorithms.ica.maps.mixing_of`, between 0 and 1.

    Parameters
    ----------
    unmixing : array (R, D)
        What was found.
    draws : iterable of arrays (D, R)
        Mixing matrices as they might have come out with other noise, in the order of the unmixing matrix.
    """
    with one_thread():
        mixing = pseudo_inverse(unmixing)
        own = _unit(mixing)
        correlations = [np.abs(np.sum(own * _unit(draw), axis=0)) for draw in draws]
    return np.asarray(np.minimum(np.median(correlations, axis=0), 1.0)[peak_order(mixing)])


def _unit(maps: FloatArray) -> FloatArray:
    centred = maps - maps.mean(axis=0)
    unit: FloatArray = centred / np.maximum(np.linalg.norm(centred, axis=0), np.finfo(float).tiny)
    return unit
