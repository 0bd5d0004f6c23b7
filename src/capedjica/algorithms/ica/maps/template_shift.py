r"""Whether networks moved away from a template, as far as noise lets that be told.

A map that was measured is compared with its template by the part p that is not along the template, in units
of the template's length: K - 1 numbers, each with noise of standard deviation :math:`\sigma`, where K numbers
stand for the features. If the network is where the template says, :math:`\lVert p \rVert^2 / \sigma^2` has a
chi-square distribution with K - 1 degrees of freedom; it moved if that is improbable at 5% over all R
networks (Bonferroni: at 0.05 / R each). What is kept of p is

.. math:: \Bigl(1 - \frac{(K - 3)\,\sigma^2}{\lVert p \rVert^2}\Bigr)_+ \, p ,                          (1)

the positive-part estimate of James and Stein (1961), whose squared error is below that of p itself wherever
the network is, and next to nothing where it did not move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import chi2

from capedjica.algorithms.analysis import ResultTable

# Of calling any network moved when none did.
LEVEL: Final = 0.05
# Standard deviations of the noise by which a support must be off its limit to be told.
TELLING: Final = 2.0
# Scans are read in single precision: without noise a shorter distance is none.
ROUNDING: Final = 1e-5


@dataclass(frozen=True)
class Movement:
    """How far one network is from its template.

    Attributes
    ----------
    name : str
        What the template calls it.
    distance : float
        Length of what is not along the template, in units of the template's map, noise included.
    noise : float
        The distance that the noise alone would give.
    shrinkage : float
        Part of the difference that is kept in the map, from 0 (the template's own) to 1.
    moved : bool
        Whether the noise does not explain the distance.
    support : float, optional
        How much of the network's map lies in people's own leading directions, from 0 to 1.
    support_noise : float
        Standard deviation of the noise on it.
    least_support : float
        Below this the network is not one of these data.
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
        """Whether the data support the network: "yes", "no", or "cannot be told" for the noise."""
        assert self.support is not None
        if abs(self.support - self.least_support) < TELLING * self.support_noise:
            return "cannot be told"
        return "yes" if self.support > self.least_support else "no"


def movement(name: str, distance: float, noise: float, n_numbers: int, n_networks: int) -> Movement:
    """Return what is told of a network, and how much of the difference is kept by equation (1).

    Parameters
    ----------
    name : str
        Of the network.
    distance : float
        Norm of the difference.
    noise : float
        Standard deviation of the noise on each of its numbers.
    n_numbers : int
        Numbers of the difference that are free: K - 1.
    n_networks : int
        R, over which the test is corrected.
    """
    if noise == 0:
        return Movement(name, distance, 0.0, 1.0, distance > ROUNDING)
    square = (distance / noise) ** 2
    kept = max(0.0, 1 - (n_numbers - 2) / square) if n_numbers > 2 and square > 0 else 1.0
    moved = square > float(chi2.isf(LEVEL / n_networks, n_numbers))
    return Movement(name, distance, noise * math.sqrt(n_numbers), kept, moved)


def movement_table(movements: Sequence[Movement]) -> ResultTable:
    """Return what people read of it."""
    guided = movements[0].support is not None
    columns, rows = (_GUIDED, _guided_rows(movements)) if guided else (_MOVED, _moved_rows(movements))
    caption = _CAPTION + (_ABOUT_SUPPORT if guided else _NOT_SAMPLING)
    return ResultTable("template", caption, columns, rows, "bars")


_CAPTION: Final = (
    "How far each network is from the template, in units of the length of its map, beside the distance "
    "that the noise of privacy alone would give. A network moved if noise does not explain its distance "
    f"({LEVEL:.0%} over all networks)."
)
_NOT_SAMPLING: Final = (
    " Of the difference the map keeps the part that is given. That other people would differ by chance is "
    "not covered by this test."
)
_ABOUT_SUPPORT: Final = (
    " The test covers the noise of privacy and, by a bound, that of sampling. Support is how much of the "
    "template's map lies in people's own leading directions: a network without support is the template's, "
    "and not one of these data."
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
