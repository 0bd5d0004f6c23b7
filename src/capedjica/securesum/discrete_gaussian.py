r"""Distribution of the grid noise, and the difference between its privacy and that of a continuous Gaussian.

Write :math:`N_Z(c, \sigma^2)` for the distribution :math:`P(k) \propto e^{-(k - c)^2 / 2 \sigma^2}` on the
integers. All results below follow from one identity, Poisson's summation formula for its normaliser,

.. math::

    \theta_\sigma(c) = \sum_k e^{-(k - c)^2 / 2 \sigma^2}
    = \sqrt{2 \pi} \sigma \Bigl(1 + 2 \sum_{m \ge 1} e^{-2 \pi^2 \sigma^2 m^2} \cos 2 \pi m c\Bigr), \tag{1}

so :math:`\theta_\sigma(c) / \sqrt{2 \pi} \sigma` stays within :math:`1 \pm r(\sigma^2)` with
:math:`r(\sigma^2) = 2 \sum_m e^{-2 \pi^2 \sigma^2 m^2} \le 2 q / (1 - q^3)` where
:math:`q = e^{-2 \pi^2 \sigma^2}` (because :math:`m^2 \ge 1 + 3 (m - 1)`). Two distributions are called
:math:`\eta`-*close* when their probabilities differ at every point by a factor within :math:`e^{\pm \eta}`;
let :math:`\eta(\sigma^2) = \log \frac{1 + r}{1 - r}`.

**A sum of discrete Gaussians is close to a discrete Gaussian** (compare Kairouz, Liu and Steinke 2021).
Completing the square, :math:`N_Z(0, \sigma_1^2) * N_Z(0, \sigma_2^2)` has at :math:`k` a probability
proportional to :math:`e^{-k^2 / 2 (\sigma_1^2 + \sigma_2^2)} \theta_\tau(c_k)` with :math:`\tau^{-2} =
\sigma_1^{-2} + \sigma_2^{-2}`, so by (1) it is :math:`\eta(\tau^2)`-close to :math:`N_Z(0, \sigma_1^2 +
\sigma_2^2)`. Convolution preserves closeness, and :math:`\tau^2 \ge \sigma_{\min}^2 / 2` at each of the
:math:`n - 1` convolutions: the sum of :math:`n` is :math:`(n - 1) \eta(\sigma_{\min}^2 / 2)`-close to
:math:`N_Z(0, \sigma^2)`, :math:`\sigma^2 = \sum \sigma_i^2`.

**A discrete Gaussian is close to a randomised rounding of a continuous one.** Let
:math:`X \sim N(0, \sigma^2 - \tau^2)` and, given :math:`X`, :math:`K \sim N_Z(X, \tau^2)`. Then

.. math::

    P(K = k) \propto
    \int e^{-x^2 / 2 (\sigma^2 - \tau^2)} \frac{e^{-(k - x)^2 / 2 \tau^2}}{\theta_\tau(x)} dx ,

and since the numerator integrates to a multiple of :math:`e^{-k^2 / 2 \sigma^2}`, by (1) :math:`K` is
:math:`\eta(\tau^2)`-close to :math:`N_Z(0, \sigma^2)`, for every :math:`0 < \tau < \sigma`. The rounding
commutes with integer shifts: :math:`N_Z(X + \Delta, \tau^2) = \Delta + N_Z(X, \tau^2)`.

**The grid therefore costs almost nothing.** Releasing an integer vector of :math:`d` coordinates with the
noise of :math:`n` honest sites is, up to :math:`\eta`-closeness with

.. math:: \eta = d \, [\eta(\tau^2) + (n - 1) \eta(\sigma_{\min}^2 / 2)] , \tag{2}

a post-processing of the continuous Gaussian mechanism of standard deviation :math:`\sqrt{\sigma^2 - \tau^2}`:
if continuous noise of standard deviation :math:`\sigma` gives :math:`\mu`-GDP, this mechanism gives
:math:`\mu'`-GDP with

.. math:: \mu' = \mu / \sqrt{1 - \tau^2 / \sigma^2} . \tag{3}

If :math:`P, Q` are the distributions of two neighbours on the grid and :math:`P', Q'` the post-processed
ones, then :math:`P(E) \le e^\eta P'(E) \le e^\eta (e^{\varepsilon'} Q'(E) + \delta_{\mu'}(\varepsilon')) \le
e^{\varepsilon' + 2 \eta} Q(E) + e^\eta \delta_{\mu'}(\varepsilon')`. With :math:`|\partial \delta / \partial
\varepsilon| \le 1`, :math:`\partial \delta / \partial \mu = \varphi(\varepsilon / \mu - \mu / 2) \le 1 /
\sqrt{2 \pi}` and :math:`\eta \le 0.1`, for **every** epsilon

.. math:: \delta_{grid}(\varepsilon) \le \delta_\mu(\varepsilon) + \frac{\mu' - \mu}{\sqrt{2 \pi}} + 4 \eta .
          \tag{4}

The free :math:`\tau` is chosen to make (4) small. **Several releases** whose costs are fixed in advance can
be bounded as one, because composition multiplies densities: (2) adds up and (3) holds for the total
:math:`\mu`. Alternatively, also if costs are chosen adaptively (docs/concepts/privacy.md, section 2), the
terms that (4) adds for each release are added up. Equation (4) holds at every real epsilon, so with :math:`y`
the first
outcome, :math:`\int P_1(y) \, \delta_2(\varepsilon + \log \frac{Q_1(y)}{P_1(y)}) \, dy` grows by no more than
what the second adds when its curve is replaced by that of :math:`\mu_2`, and then the same is done for the
first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from capedjica.errors import InputError

_LARGEST_CLOSENESS: Final = 0.1


def _checked(sigma: float) -> float:
    if not 0 < sigma < math.inf:
        raise InputError(f"sigma must be a positive finite number of grid steps, got {sigma!r}")
    return float(sigma)


@lru_cache(maxsize=8)
def _total_and_least(sigmas: tuple[float, ...]) -> tuple[float, float]:
    """Return the sum of the variances and the least; cached, since all sites of a release have the same."""
    variances = [_checked(sigma) ** 2 for sigma in sigmas]
    return math.fsum(variances), min(variances)


def _closeness(variance: float) -> float:
    """Return eta(variance), the log of (1 + r) / (1 - r) with r from equation (1); infinite where r >= 1."""
    q = math.exp(-2 * math.pi**2 * variance)
    r = 2 * q / (1 - q**3) if q < 1 else math.inf
    return 2 * math.atanh(r) if r < 1 else math.inf


def grid_delta(mu: float, sigmas: Sequence[float], dimension: int) -> float:
    r"""Return the grid's contribution to delta, at every epsilon, over continuous noise of equal variance.

    Equation (4), with the :math:`\tau^2` that minimises its two leading terms, :math:`A \tau^2 + B e^{-2
    \pi^2 \tau^2}`: :math:`2 \pi^2 \tau^2 = \log(2 \pi^2 B / A)`, :math:`A = \mu / (2 \sqrt{2 \pi} \sigma^2)`,
    :math:`B = 16 d`. Any :math:`\tau` gives a valid bound; it is at most :math:`1.3 \times 10^{-10} \mu` for
    :math:`\sigma \ge 2^{16}`, :math:`d \le 10^7` and :math:`\mu \ge 10^{-3}`.

    Parameters
    ----------
    mu : float
        Euclidean sensitivity in grid steps divided by the standard deviation ``sqrt(sum(sigmas**2))``; for a
        whole run, the total mu.
    sigmas : sequence of float
        Grid noise of each honest site; for a whole run, those of the release with the least noise.
    dimension : int
        Number of coordinates released; for a whole run, in total.

    Returns
    -------
    float
        A term to add to ``delta(epsilon)`` of the mu-GDP curve; 1 if the noise is too small for a bound.
        The terms of several releases add up.
    """
    if not 0 < mu < math.inf:
        raise InputError(f"mu must be a positive finite number, got {mu!r}")
    if dimension < 1 or not len(sigmas):
        raise InputError(
            f"dimension must be at least 1 and sigmas not empty, got {dimension=} and {len(sigmas)} sigmas"
        )
    variance, least = _total_and_least(tuple(sigmas))
    smoothing = min(_best_smoothing(mu, variance, dimension), variance / 2)
    closeness = dimension * (_closeness(smoothing) + (len(sigmas) - 1) * _closeness(least / 2))
    if closeness > _LARGEST_CLOSENESS:
        return 1.0
    # mu' - mu, without the cancellation
    inflation = mu * math.expm1(-0.5 * math.log1p(-smoothing / variance))
    return min(1.0, inflation / math.sqrt(2 * math.pi) + 4 * closeness)


def _best_smoothing(mu: float, variance: float, dimension: int) -> float:
    """Return the tau^2 that minimises equation (4) to leading order."""
    slope = mu / (2 * math.sqrt(2 * math.pi) * variance)
    return math.log(1 + 2 * math.pi**2 * 16 * dimension / slope) / (2 * math.pi**2)
