r"""Test and estimate of the shift of networks away from a template.

A measured map is compared with its template by the part p that is orthogonal to the template, in units of the
template's norm: K - 1 numbers, each with noise of standard deviation :math:`\sigma`, where K coefficients
represent the features. If the network equals the template, :math:`\lVert p \rVert^2 / \sigma^2` has a
chi-square distribution with K - 1 degrees of freedom; the network has moved if this is improbable at 5% over
all R networks (Bonferroni: at 0.05 / R each). The estimate of p is

.. math:: \Bigl(1 - \frac{(K - 3)\,\sigma^2}{\lVert p \rVert^2}\Bigr)_+ \, p ,                          (1)

the positive-part estimate of James and Stein (1961), whose squared error is always below that of p itself,
and close to zero if the network did not move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import scipy

from capedjica.algorithms.analysis import ResultTable

# Probability that any network is reported as moved although none did.
LEVEL: Final = 0.05
# Standard deviations of the noise by which a support must differ from its limit to be decided.
TELLING: Final = 2.0
# Scans are read in single precision: without noise, shorter distances are rounding errors.
ROUNDING: Final = 1e-5


@dataclass(frozen=True)
class Movement:
    """Distance of one network from its template.

    Attributes
    ----------
    name : str
        Name of the network in the template.
    distance : float
        Norm of the part orthogonal to the template, in units of the template's map, including noise.
    noise : float
        Distance expected from the noise alone.
    shrinkage : float
        Fraction of the difference that is kept in the map, from 0 (the template itself) to 1.
    moved : bool
        Whether the distance is more than the noise explains.
    support : float, optional
        Fraction of the network's map that lies in subjects' own leading directions, from 0 to 1.
    support_noise : float
        Standard deviation of the noise on it.
    least_support : float
        Below this the network is not considered part of these data.
    """

    name: str
    distance: float
    noise: float
    shrinkage: float
    moved: bool
    support: float | None = None
    support_noise: float = 0.0
    least_support: float = 0.0

    @property
    def supported(self) -> str:
        """Whether the data support the network: "yes", "no", or "cannot be determined" due to noise."""
        assert self.support is not None
        if abs(self.support - self.least_support) < TELLING * self.support_noise:
            return "cannot be determined"
        return "yes" if self.support > self.least_support else "no"


def movement(name: str, distance: float, noise: float, n_numbers: int, n_networks: int) -> Movement:
    """Test whether a network moved, and return how much of the difference is kept by equation (1).

    Parameters
    ----------
    name : str
        Name of the network.
    distance : float
        Norm of the difference.
    noise : float
        Standard deviation of the noise on each of its numbers.
    n_numbers : int
        Degrees of freedom of the difference: K - 1.
    n_networks : int
        R, for the correction of the test.
    """
    if noise == 0:
        return Movement(name, distance, 0.0, 1.0, distance > ROUNDING)
    square = (distance / noise) ** 2
    kept = max(0.0, 1 - (n_numbers - 2) / square) if n_numbers > 2 and square > 0 else 1.0
    moved = square > float(scipy.stats.chi2.isf(LEVEL / n_networks, n_numbers))
    return Movement(name, distance, noise * math.sqrt(n_numbers), kept, moved)


def movement_table(movements: Sequence[Movement]) -> ResultTable:
    """Return the distances as a table."""
    guided = movements[0].support is not None
    columns, rows = (_GUIDED, _guided_rows(movements)) if guided else (_MOVED, _moved_rows(movements))
    caption = _CAPTION + (_ABOUT_SUPPORT if guided else _NOT_SAMPLING)
    return ResultTable("template", caption, columns, rows, "bars")


_CAPTION: Final = (
    "Distance of each network from the template, in units of the norm of its map, next to the distance "
    "expected from privacy noise alone. A network moved if noise does not explain its distance "
    f"({LEVEL:.0%} over all networks)."
)
_NOT_SAMPLING: Final = (
    " The map keeps the stated part of the difference. This test does not cover differences by chance "
    "between samples of participants."
)
_ABOUT_SUPPORT: Final = (
    " The test covers privacy noise and, by a bound, sampling noise. Support is the fraction of the "
    "template's map that lies in participants' own leading directions: a network without support is the "
    "template's, and not one of these data."
)
_MOVED: Final = ("network", "distance", "distance by noise alone", "part kept", "moved")
_GUIDED: Final = ("network", "distance", "distance by noise alone", "moved", "support", "supported")


def _moved_rows(movements: Sequence[Movement]) -> list[tuple[object, ...]]:
    return [(one.name, one.distance, one.noise, one.shrinkage, _said(one.moved)) for one in movements]


def _guided_rows(movements: Sequence[Movement]) -> list[tuple[object, ...]]:
    return [
        (one.name, one.distance, one.noise, _said(one.moved), one.support, one.supported) for one in movements
    ]


def _said(moved: bool) -> str:
    return "yes" if moved else "no"
