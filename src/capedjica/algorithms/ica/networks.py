"""What a joint ICA finds: maps of brain networks, and how stable each is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capedjica.algorithms.analysis import Result
from capedjica.algorithms.ica.maps import mixing_of, pseudo_inverse
from capedjica.algorithms.ica.reliability import stability
from capedjica.tools.arrays import FloatArray

Draws = Callable[[], Iterator[FloatArray] | None]


@dataclass(frozen=True, eq=False)
class Networks(Result):
    """Networks as they were estimated.

    Attributes
    ----------
    estimate : array (R, D)
        Unmixing matrix of centred data, its rows in any order and scale.
    draws : callable
        Yields (D, R) mixing matrices as they might have come out with other noise, in the order of the
        components of ``estimate``, from what was published and the known noise alone; None if not known.
    """

    estimate: FloatArray
    draws: Draws = lambda: None

    @cached_property
    def mixing(self) -> FloatArray:
        """The maps as columns (D, R), in an order, sign and scale that stay the same between runs."""
        return mixing_of(self.estimate)

    @property
    def maps(self) -> FloatArray:
        """The maps as rows (R, D)."""
        return np.ascontiguousarray(self.mixing.T)

    @cached_property
    def stability(self) -> FloatArray | None:
        """How stable each map is (:mod:`capedjica.algorithms.ica.reliability`)."""
        draws = self.draws()
        return None if draws is None else stability(self.estimate, draws)

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the maps as columns, and the matrix that unmixes a centred scan."""
        return {"unmixing": pseudo_inverse(self.mixing), "mixing": self.mixing}
