r"""Number of recoverable components, estimated from the released mean projector at no further cost.

The published value is :math:`N = \bar P + \sigma G`: the mean of the projectors onto every subject's own R
leading directions, and noise whose svec has variance :math:`\sigma^2` on each number, so :math:`\sigma^2` on
the diagonal and :math:`\tau^2 = \sigma^2 / 2` off it (:mod:`capedjica.algorithms.svec`): a Gaussian
orthogonal ensemble. The largest of its K eigenvalues has the distribution of Tracy and Widom (1996),

.. math:: \lambda_{\max} \approx \tau \, (2 \sqrt K + K^{-1/6} \, TW_1),                                 (1)

and is below the *edge*, where :math:`TW_1` is its 95% quantile, 19 times out of 20. A direction common to all
subjects is an eigenvector of :math:`\bar P` with an eigenvalue :math:`\theta` near 1. Directions that are not
common are spread over all others: a bulk of level b, about :math:`(R - r) / K` if r directions are common.
Sampling M subjects gives it a width even if no direction is preferred, as if :math:`\tau^2` were larger by
:math:`b (1 - b) / (K M)`. A direction with :math:`h = \theta - b` stands out from the noise if (Baik, Ben
Arous and Péché 2005; Benaych-Georges and Nadakuditi 2011)

.. math:: h > \tau \sqrt K, \quad \text{at} \quad \lambda = b + h + \tau^2 K / h .                       (2)

The number of components is the largest n for which the n-th eigenvalue exceeds the median of the remaining
ones, itself included, by more than the edge for the same number of eigenvalues. It is the *recoverable*
number, not the number of networks in the brain: directions below the edge are lost in the noise, and as the
noise decreases, every deviation from a flat bulk, however meaningless, eventually exceeds it, so that n tends
to the maximum R.

Directions too weak to stand out individually are still visible in the sum of squares of the remainder: if it
is more than the noise explains, there are *more* than n, and their number cannot be determined. For pure
noise, the remaining :math:`k = K - n` eigenvalues would have a sum of squares of :math:`\tau^2 (k (k + 1) -
2)` about their mean, with a standard deviation of :math:`2 \tau^2 \sqrt{k (k + 1)}`: it is :math:`2 \tau^2`
times a :math:`\chi^2`. The n that stand out have absorbed some of it. On average, N has :math:`\sum_i h_i^2 +
\tau^2 K (K + 1)` about b, of which those found have :math:`\sum_i (h_i + \tau^2 k / h_i)^2 + \tau^2 n (n +
1)`, so the remainder is reduced by

.. math:: \sum_{i \le n} \tau^4 k^2 / h_i^2 ,                                                           (3)

with :math:`h_i` by equation (2) from the i-th eigenvalue: near the threshold this is as much as a hidden
direction adds.
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
# 95% quantiles of the Tracy-Widom distribution for real symmetric matrices, and of a normal variable.
TRACY_WIDOM: Final = 0.9793
NORMAL: Final = 1.645
# Smallest number of components that can be separated.
FEWEST: Final = 2


def noise_edge(size: int, spread: float) -> float:
    r"""Return the value that the largest eigenvalue of the noise exceeds once in 20 times, equation (1).

    Parameters
    ----------
    size : int
        K.
    spread : float
        :math:`\tau`, the standard deviation of the noise off the diagonal.
    """
    return spread * (2 * math.sqrt(size) + TRACY_WIDOM * math.pow(size, -1 / 6))


def least_shared(size: int, maximum: int, noise: float) -> float:
    r"""Return how large an eigenvalue of the mean projector must be to stand out from the noise.

    An eigenvalue is the mean, over subjects, of the fraction of a direction that lies in their own leading
    directions: 1 if all subjects have it. It follows from equation (2) with the eigenvalue at the edge and
    :math:`b = R / K`, for subjects with nothing in common: before a study runs, no more is known.

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
    """Number of components according to the eigenvalues of the released mean projector.

    Attributes
    ----------
    found : int
        Number of directions that stand out from the noise.
    maximum : int
        R, the number requested, which is an upper limit.
    more : bool
        Whether the remainder is more than the noise explains: then there are more than were found.
    edges : array (maximum,)
        Value that each eigenvalue must exceed.
    eigenvalues : array (maximum,)
        Eigenvalues, largest first.
    auto : bool
        Whether the number was to be determined, with ``maximum`` as its upper limit.
    """

    found: int
    maximum: int
    more: bool
    edges: FloatArray
    eigenvalues: FloatArray
    auto: bool = False

    @property
    def recoverable(self) -> int | None:
        """Number of recoverable components; None if it cannot be determined."""
        return self.found if self.found >= FEWEST else None

    @property
    def kept(self) -> int:
        """Number of components to use: the number requested, if none can be determined."""
        return self.found if self.auto and self.recoverable is not None else self.maximum

    def __str__(self) -> str:
        """Describe the result in a sentence or two."""
        if self.recoverable is None:
            return (
                "The number of components cannot be determined: the noise hides what participants have in "
                "common. More participants or a larger epsilon would show it."
            )
        many = counted(self.found, "component")
        if self.found == self.maximum:
            return f"All {many} that were requested are recoverable; there may be more."
        beyond = (
            "; more are hidden by the noise, and their number cannot be determined"
            if self.more
            else "; there is no sign of more"
        )
        return f"At this noise level {many} of at most {self.maximum} can be recovered{beyond}."

    @property
    def warning(self) -> str:
        """Warning if more components were requested than are recoverable; otherwise empty."""
        if self.found >= self.kept:
            return ""
        noise = "Any map" if self.recoverable is None else "Further maps"
        return f"{self.maximum} components were requested. {self} {noise} may be noise."

    @property
    def telling(self) -> bool:
        """Whether to report it: the number was to be determined, or exceeds what is recoverable."""
        return self.auto or bool(self.warning)

    def table(self) -> ResultTable:
        """Return the eigenvalues alongside the edge of the noise."""
        rows = [
            (f"{number}", float(value), float(edge), "yes" if number <= self.found else "no")
            for number, (value, edge) in enumerate(zip(self.eigenvalues, self.edges, strict=True), start=1)
        ]
        caption = (
            f"{self} Eigenvalues of the released mean projector, and the value that each must exceed to "
            "stand out from the privacy noise. It is the number that can be recovered, not the true number."
        )
        columns = ("direction", "eigenvalue", "edge of the noise", "stands out")
        return ResultTable("number_of_components", caption, columns, rows)


def component_number(released: ReleasedMean, maximum: int, auto: bool = False) -> ComponentNumber:
    """Estimate the number of components from a released mean projector.

    Parameters
    ----------
    released : ReleasedMean
        The svec of the mean projector, with its noise and the number of subjects.
    maximum : int
        R, the rank of a subject's projector.
    auto : bool
        Whether the number is to be determined.
    """
    values: FloatArray = np.linalg.eigvalsh(unsvec(released.value))[::-1].astype(np.float64)
    most = min(maximum, len(values) - 1)
    edges = np.array([_edge(values[n:], released, len(values)) for n in range(most)])
    above = np.flatnonzero(values[:most] > edges)
    found = int(above[-1]) + 1 if len(above) else 0
    more = _left_over(values, found, released)
    # Of K directions, at most K - 1 have others to compare with.
    shown = np.append(edges, edges[-1:].repeat(maximum - most)) if most else np.zeros(maximum)
    found = maximum if found == most < maximum else found
    return ComponentNumber(found, maximum, more, shown, values[:maximum], auto)


def _edge(bulk: FloatArray, released: ReleasedMean, size: int) -> float:
    level = float(np.median(bulk))
    return level + noise_edge(len(bulk), _spread(level, released, size))


def _spread(level: float, released: ReleasedMean, size: int) -> float:
    """Return the off-diagonal standard deviation due to noise and sampling."""
    share = min(max(level, 0.0), 1.0)
    sampling = share * (1 - share) / (size * released.n_people) if released.n_people else 0.0
    return math.sqrt(released.noise**2 / 2 + sampling)


def _left_over(values: FloatArray, found: int, released: ReleasedMean) -> bool:
    """Return whether the remaining eigenvalues vary by more than noise and sampling explain."""
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
    r"""Return equation (3) for eigenvalues above their bulk, with :math:`\tau^2 k`."""
    heights = (above + np.sqrt(np.maximum(above**2 - 4 * square, 0.0))) / 2
    return float(np.sum((square / np.maximum(heights, math.sqrt(square))) ** 2)) if square else 0.0
