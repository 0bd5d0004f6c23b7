r"""How many components the noise lets through, told from the released mean projector at no further cost.

Published is :math:`N = \bar P + \sigma G`: the mean of the projectors on every subject's own R leading
directions, and noise whose svec has variance :math:`\sigma^2` on each number, so :math:`\sigma^2` on the
diagonal and :math:`\tau^2 = \sigma^2 / 2` off it (:mod:`capedjica.algorithms.svec`): a Gaussian orthogonal
ensemble. The largest of its K eigenvalues has the law of Tracy and Widom (1996),

.. math:: \lambda_{\max} \approx \tau \, (2 \sqrt K + K^{-1/6} \, TW_1),                                 (1)

and stays below the *edge*, where :math:`TW_1` is its 95% quantile, 19 times out of 20. A direction that all
subjects have in common is an eigenvector of :math:`\bar P` with an eigenvalue :math:`\theta` near 1. What
people do not have in common is spread over all other directions: a bulk of level b, about
:math:`(R - r) / K` if r directions are common, and of a width that sampling M subjects gives even where no
direction is preferred, as if :math:`\tau^2` were larger by :math:`b (1 - b) / (K M)`. A direction with
:math:`h = \theta - b` stands out of the noise if (Baik, Ben Arous and Péché 2005; Benaych-Georges and
Nadakuditi 2011)

.. math:: h > \tau \sqrt K, \quad \text{at} \quad \lambda = b + h + \tau^2 K / h .                       (2)

The number of components is the largest n for which the n-th eigenvalue exceeds the median of those from it on
by more than the edge of as many. It is what is *recoverable*, not how many networks there are: directions
below the edge are lost in the noise, and as the noise falls everything that differs from a flat bulk, however
little it means, comes to lie above it, so that n tends to the maximum R.

Directions too weak to stand out one by one still show together, in the sum of squares of what is left: if it
is more than the noise explains there are *more* than n, and how many cannot be told. Of noise alone, the
:math:`k = K - n` eigenvalues that are left would have :math:`\tau^2 (k (k + 1) - 2)` about their mean, with a
standard deviation of :math:`2 \tau^2 \sqrt{k (k + 1)}`: it is :math:`2 \tau^2` times a :math:`\chi^2`. The
n that stand out have taken some of it with them. All of N has :math:`\sum_i h_i^2 + \tau^2 K (K + 1)` about b
on average, of which those found have :math:`\sum_i (h_i + \tau^2 k / h_i)^2 + \tau^2 n (n + 1)`, so that what
is left is less by

.. math:: \sum_{i \le n} \tau^4 k^2 / h_i^2 ,                                                           (3)

with :math:`h_i` by equation (2) from the i-th eigenvalue: near the threshold as much as a hidden direction
adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from capedjica.algorithms.analysis import ReleasedMean, ResultTable
from capedjica.algorithms.svec import unsvec
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

AUTO: Final = "auto"
# The 95% quantile of the law of Tracy and Widom for real symmetric matrices, and of a normal variable.
TRACY_WIDOM: Final = 0.9793
NORMAL: Final = 1.645
# The fewest that can be told apart from each other.
FEWEST: Final = 2


def noise_edge(size: int, spread: float) -> float:
    r"""Return what the largest eigenvalue of the noise exceeds once in 20 times, equation (1).

    Parameters
    ----------
    size : int
        K.
    spread : float
        :math:`\tau`, the standard deviation of the noise off the diagonal.
    """
    return spread * (2 * math.sqrt(size) + TRACY_WIDOM * math.pow(size, -1 / 6))


def least_shared(size: int, maximum: int, noise: float) -> float:
    r"""Return how large an eigenvalue of the mean projector must be to stand out of the noise alone.

    An eigenvalue is the mean, over people, of how much of a direction lies in their own leading directions:
    1 if everybody has it. By equation (2) with the eigenvalue at the edge and :math:`b = R / K`, where
    people have nothing in common: before a study runs, no more is known.

    Parameters
    ----------
    size : int
        K.
    maximum : int
        R.
    noise : float
        :math:`\sigma`.
    """
    spread = noise / math.sqrt(2)
    edge, half = noise_edge(size, spread), spread**2 * size
    return maximum / size + (edge + math.sqrt(max(edge**2 - 4 * half, 0.0))) / 2


@dataclass(frozen=True, eq=False)
class ComponentNumber:
    """What the eigenvalues of the released mean projector say.

    Attributes
    ----------
    found : int
        Directions that stand out of the noise.
    maximum : int
        R, what was asked for; no more can be told.
    more : bool
        Whether what is left is more than the noise explains: then there are more than were found.
    edges : array (maximum,)
        What each eigenvalue must exceed.
    eigenvalues : array (maximum,)
        The largest first.
    auto : bool
        Whether the number was left open, and the maximum is the most there may be.
    """

    found: int
    maximum: int
    more: bool
    edges: FloatArray
    eigenvalues: FloatArray
    auto: bool = False

    @property
    def recoverable(self) -> int | None:
        """How many components can be recovered; None if that is not determinable."""
        return self.found if self.found >= FEWEST else None

    @property
    def kept(self) -> int:
        """How many to go on with: all that were asked for, where nothing can be told."""
        return self.found if self.auto and self.recoverable is not None else self.maximum

    def __str__(self) -> str:
        """Say it in a sentence or two."""
        if self.recoverable is None:
            return (
                "The number of components is not determinable: the noise hides what people have in common. "
                "More people or a larger epsilon would show it."
            )
        many = counted(self.found, "component")
        if self.found == self.maximum:
            return f"The noise lets through all {many} that were asked for; there may be more."
        beyond = (
            "; there are more that it hides, and how many cannot be told"
            if self.more
            else "; there is no trace of more"
        )
        return f"The noise lets through {many} of at most {self.maximum}{beyond}."

    @property
    def warning(self) -> str:
        """What to say of a number that exceeds what the noise lets through; empty if it does not."""
        if self.found >= self.kept:
            return ""
        noise = "Any map" if self.recoverable is None else "Maps beyond that"
        return f"{self.maximum} components were asked for. {self} {noise} may be noise."

    @property
    def telling(self) -> bool:
        """Whether people are to be told: the number was left open, or exceeds what the noise lets through."""
        return self.auto or bool(self.warning)

    def table(self) -> ResultTable:
        """Return the eigenvalues beside what the noise explains."""
        rows = [
            (f"{number}", float(value), float(edge), "yes" if number <= self.found else "no")
            for number, (value, edge) in enumerate(zip(self.eigenvalues, self.edges, strict=True), start=1)
        ]
        caption = (
            f"{self} Eigenvalues of the released mean projector, and what each must exceed to stand out of "
            "the noise of privacy. It says what can be recovered, not how many networks there are."
        )
        columns = ("direction", "eigenvalue", "edge of the noise", "stands out")
        return ResultTable("number_of_components", caption, columns, rows)


def component_number(released: ReleasedMean, maximum: int, auto: bool = False) -> ComponentNumber:
    """Return how many components a released mean projector shows.

    Parameters
    ----------
    released : ReleasedMean
        The svec of the mean projector, with its noise and the number of people.
    maximum : int
        R, the rank of a subject's projector.
    auto : bool
        Whether the number was left open.
    """
    values: FloatArray = np.linalg.eigvalsh(unsvec(released.value))[::-1].astype(np.float64)
    most = min(maximum, len(values) - 1)
    edges = np.array([_edge(values[n:], released, len(values)) for n in range(most)])
    above = np.flatnonzero(values[:most] > edges)
    found = int(above[-1]) + 1 if len(above) else 0
    more = _left_over(values, found, released)
    # Of K directions at most K - 1 have others to stand out of.
    shown = np.append(edges, edges[-1:].repeat(maximum - most)) if most else np.zeros(maximum)
    found = maximum if found == most < maximum else found
    return ComponentNumber(found, maximum, more, shown, values[:maximum], auto)


def _edge(bulk: FloatArray, released: ReleasedMean, size: int) -> float:
    level = float(np.median(bulk))
    return level + noise_edge(len(bulk), _spread(level, released, size))


def _spread(level: float, released: ReleasedMean, size: int) -> float:
    """Return the standard deviation off the diagonal, of the noise and of sampling."""
    share = min(max(level, 0.0), 1.0)
    sampling = share * (1 - share) / (size * released.n_people) if released.n_people else 0.0
    return math.sqrt(released.noise**2 / 2 + sampling)


def _left_over(values: FloatArray, found: int, released: ReleasedMean) -> bool:
    """Tell whether the eigenvalues that do not stand out vary by more than noise and sampling explain."""
    bulk = values[found:]
    n = len(bulk)
    if n < FEWEST:
        return False
    level = float(np.mean(bulk))
    spread = _spread(level, released, len(values))
    taken = _taken_along(values[:found] - float(np.median(bulk)), spread**2 * n)
    energy = float(np.sum((bulk - level) ** 2))
    return energy + taken > spread**2 * (n * (n + 1) - 2 + NORMAL * 2 * math.sqrt(n * (n + 1)))


def _taken_along(above: FloatArray, square: float) -> float:
    r"""Return equation (3) of eigenvalues above their bulk, with :math:`\tau^2 k`."""
    heights = (above + np.sqrt(np.maximum(above**2 - 4 * square, 0.0))) / 2
    return float(np.sum((square / np.maximum(heights, math.sqrt(square))) ** 2)) if square else 0.0
