r"""Calibrated stability: the predicted correlation of a map with that of another run with fresh noise.

Adding redrawn noise to what was published gives a correlation c of a map with itself
(:func:`capedjica.algorithms.ica.maps.networks.likeness`). If noise is a fraction f of the map's energy and
adds linearly, c is :math:`1 / \sqrt{1 + f}`, and the correlation of two runs, each with independent noise on
the same truth, is

.. math:: g = 1 - f = 2 - 1 / c^2 .                                                                     (1)

Neither holds if noise determines which maps are found. Redrawn noise cannot show that rotations by large
angles may converge elsewhere: with t the cosine of the angle by which the data rotated a component away from
the varimax start (near 1 on synthetic data, 0.7 on ABIDE), the prediction is

.. math:: s = 1 - \alpha (1 - g) - \beta (1 - c) - \gamma \sqrt{(1 - g) (1 - t)} .                      (2)

With guidance by a template, the prediction is for the difference from it. Redrawn noise does not show that
another run may find evidence to move where this one found none, and the prediction is :math:`\kappa g`.

The constants were fitted by least squares (what is too high counts twice) to the mean correlations between
five runs at epsilon 1, 2, 3, 5 and 10, of synthetic data, a simulated brain and half of the sites of ABIDE
(``python -m benchmarks.utility.calibration``). They are public, fixed, and never fitted to a study's data.
``python -m benchmarks.utility stability`` compares predictions with results on other data.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from capedjica.tools.arrays import FloatArray

# alpha, beta and gamma of equation (2).
JOINT: Final = (0.0, 1.62, 0.61)
SPATIAL: Final = (0.08, 1.03, 0.0)
# kappa.
GUIDED: Final = 0.80


def between_runs(likeness: FloatArray) -> FloatArray:
    """Return g of equation (1), at least 0."""
    return np.clip(2 - 1 / np.maximum(likeness, 0.5) ** 2, 0.0, 1.0)


def of_guided(likeness: FloatArray) -> FloatArray:
    """Return the prediction for differences from a template that guided the search."""
    return GUIDED * between_runs(likeness)


def calibrated(
    likeness: FloatArray, turned: FloatArray | float = 1.0, constants: tuple[float, float, float] = JOINT
) -> FloatArray:
    """Return the predicted stability s of equation (2), between 0 and 1.

    Parameters
    ----------
    likeness : array (R,)
        c of each map.
    turned : array (R,) or float
        t of each map; 1 without rotation.
    constants : tuple of float
        Alpha, beta and gamma.
    """
    linear, drawn, far = constants
    lost = 1 - between_runs(likeness)
    beyond = np.sqrt(lost * np.clip(1 - np.asarray(turned), 0.0, 1.0))
    predicted: FloatArray = np.clip(1 - linear * lost - drawn * (1 - likeness) - far * beyond, 0.0, 1.0)
    return predicted
