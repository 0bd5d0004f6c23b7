r"""Privacy cost of CAPE: the adversary's exact view, and calibration of the noise to a guarantee.

Site s sends :math:`y_s = f_s + e_s + g_s` with a mask :math:`e_s \sim N(0, \sigma_s^2)` and local noise
:math:`g_s \sim N(0, t_s^2)`; the secure sum publishes :math:`T = \sum_i w_i e_i`. The adversary is the
aggregator colluding with up to S_C sites: it knows every y, T, and all values of the colluding sites. Write H
for the honest sites, :math:`A_i = \sigma_i^2 + t_i^2`, :math:`r_i = \sigma_i^2 / A_i`. One subject at site s
moves :math:`f_s` by at most :math:`\Delta_s`, and the view is Gaussian with a known covariance, so it
is exactly mu-GDP with

.. math:: \mu_s^2 = \Delta_s^2 \left[ \frac{1}{A_s}
          + \frac{(w_s r_s)^2}{\sum_{i \in H} w_i^2 r_i t_i^2} \right] .        (3)

*Derivation.* After subtracting the values that the adversary knows, its view is :math:`y_i` for i in H and
:math:`T_H = \sum_{i \in H} w_i e_i`. The y_i are independent with variance A_i. Given them, e_i has mean
:math:`r_i (y_i - f_i)` and variance :math:`r_i t_i^2`, so :math:`T_H` has mean
:math:`\sum w_i r_i (y_i - f_i)` and variance :math:`\sum w_i^2 r_i t_i^2`. By the chain rule the squared
shift of the pair is that of :math:`y_s`, :math:`\Delta_s^2 / A_s`, plus that of :math:`T_H` given y,
:math:`(w_s r_s \Delta_s)^2 / \sum w_i^2 r_i t_i^2`. (docs/concepts/privacy.md gives all steps.)

Only the sum in the denominator depends on which sites collude, so the worst S_C colluding sites for site s
are the other sites with the largest *cover* :math:`w_i t_i \sqrt{r_i}`.

Masks uniform on a finite ring are the limit of infinite variance: r = 1, 1/A = 0, and only the noise of the
published sum remains, :math:`\mu_s^2 = (w_s \Delta_s)^2 / \sum_H w_i^2 t_i^2`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.tools.arrays import FloatArray

Mask = Literal["uniform", "paper", "none"]


class Cape:
    """One CAPE release: the noise of each site and the resulting privacy cost.

    Parameters
    ----------
    mask_var : float or array of shape (n_sites,)
        Variance of each site's mask; ``inf`` for masks uniform on the ring, 0 for no masks (the
        conventional scheme: independent noise at each site).
    local_var : float or array of shape (n_sites,)
        Variance of each site's local noise.
    weights : array of shape (n_sites,)
        Weights of the sites in the published mean; they add up to 1.
    n_colluding : int or "third"
        S_C, the number of sites that may collude with the aggregator; "third" is max(1, ceil(S/3) - 1).

    Examples
    --------
    The paper's choice for four sites, one of them colluding, sigma = tau = 1 and t^2 = tau^2/S:

    >>> cape = Cape(mask_var=1.0, local_var=1 / 4, weights=[1 / 4] * 4, n_colluding=1)
    >>> (cape.mu(1.0) ** 2).round(4).tolist()
    [1.8667, 1.8667, 1.8667, 1.8667]
    >>> cape.output_variance
    0.0625
    """

    def __init__(
        self,
        mask_var: ArrayLike,
        local_var: ArrayLike,
        weights: ArrayLike,
        n_colluding: int | str = "third",
    ) -> None:
        self.weights = validate.weights(weights)
        self.n_sites = len(self.weights)
        self.mask_var = validate.per_site("mask_var", mask_var, self.n_sites)
        self.local_var = validate.per_site("local_var", local_var, self.n_sites)
        if np.isinf(self.local_var).any():
            raise InputError("local_var must be finite, got inf")
        self.n_colluding = validate.colluding(n_colluding, self.n_sites)

    @property
    def output_variance(self) -> float:
        """Variance of each entry of the published mean: the masks cancel, sum_s w_s^2 t_s^2 remains."""
        return math.fsum(self.weights**2 * self.local_var)

    def mu(self, sensitivities: ArrayLike) -> FloatArray:
        """Return the exact mu of one release for one subject of each site, for the worst colluding set.

        Parameters
        ----------
        sensitivities : float or array of shape (n_sites,)
            Sensitivity of each site's statistic f_s to one subject (L2 norm).

        Returns
        -------
        mu : array of shape (n_sites,)
            Equation (3) of this module; infinite for a site without any noise or mask.
        """
        shift = validate.per_site("sensitivities", sensitivities, self.n_sites)
        direct = _ratio(1.0, np.hypot(np.sqrt(self.mask_var), np.sqrt(self.local_var)))
        through_sum = _ratio(self.weights * self._mask_share() ** 2, self._honest_cover())
        return _product(shift, np.hypot(direct, through_sum))

    def epsilon(self, sensitivities: ArrayLike, delta: float) -> FloatArray:
        """Return the exact epsilon of one release for one subject of each site."""
        return np.array([gaussian_epsilon(mu, delta) for mu in self.mu(sensitivities)])

    def worst_colluders(self, site: int) -> list[int]:
        """Return the S_C other sites whose collusion costs ``site`` the most privacy."""
        others = [int(i) for i in self._by_cover() if i != site]
        return sorted(others[: self.n_colluding])

    def _mask_share(self) -> FloatArray:
        """sqrt(r_i) = sigma_i / sqrt(A_i), 1 for infinite masks and 0 for none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = 1 / np.hypot(1, np.sqrt(self.local_var) / np.sqrt(self.mask_var))
        return np.where(self.mask_var == 0, 0.0, share)

    def _cover(self) -> FloatArray:
        """w_i t_i sqrt(r_i): spread that site i's secrets add to the published sum, given its message."""
        return self.weights * self._mask_share() * np.sqrt(self.local_var)

    def _by_cover(self) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.argsort(-self._cover(), kind="stable")

    def _honest_cover(self) -> FloatArray:
        """Return the root sum of squared covers of the honest sites, for each site's worst colluding set.

        With covers in descending order, a site outside the first S_C loses these S_C covers. A site among
        them keeps its own cover and all covers after the first S_C + 1. The cost is O(S log S). Tail sums do
        not cancel, and standard deviations do not underflow as variances would, which would understate mu.
        """
        order = self._by_cover()
        cover = self._cover()[order]
        tails = np.append(np.hypot.accumulate(cover[::-1])[::-1], 0.0)
        rank = np.arange(self.n_sites)
        k = self.n_colluding
        honest: FloatArray = np.empty(self.n_sites)
        honest[order] = np.where(rank >= k, tails[k], np.hypot(cover, tails[k + 1]))
        return honest


def _ratio(numerator: ArrayLike, denominator: FloatArray) -> FloatArray:
    """Quotient with x/0 = inf for x > 0 and 0/anything = 0."""
    top = np.broadcast_to(np.asarray(numerator, dtype=np.float64), denominator.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient: FloatArray = np.where(top == 0, 0.0, top / denominator)
    return quotient


def _product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Product with 0 times anything = 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        product: FloatArray = np.where((left == 0) | (right == 0), 0.0, left * right)
    return product


def calibrate(
    mu: ArrayLike,
    sensitivities: ArrayLike,
    weights: ArrayLike,
    n_colluding: int | str = "third",
    mask: Mask = "uniform",
) -> Cape:
    r"""Return the release of least variance in the mean for which each site has at most its ``mu``.

    Parameters
    ----------
    mu : float or array of shape (n_sites,)
        Largest mu allowed, for all sites or for each (``gaussian_mu(epsilon, delta)``).
    sensitivities : float or array of shape (n_sites,)
        Sensitivity of each site's statistic to one subject (2C/M_s for a mean over M_s subjects).
    weights : array of shape (n_sites,)
        Weights of the sites in the mean, all above 0.
    n_colluding : int or "third"
        S_C.
    mask : {"uniform", "paper", "none"}
        Masks uniform on the ring; the paper's Gaussian masks of variance :math:`S t_s^2`; or no masks
        (the conventional scheme).

    Notes
    -----
    Let :math:`x_i = w_i^2 t_i^2` and :math:`K_s = (w_s \Delta_s / \mu_s)^2`.

    *Uniform masks.* Minimise :math:`\sum x_i` subject to :math:`\sum_{i \in H} x_i \ge \max_{s \in H} K_s`
    for every H of S_H sites. :func:`capedjica.privacy.cape._least_noise` solves this linear program in
    closed form; for equal K it is :math:`x_i = K / S_H`, total :math:`K S / S_H`.

    *Paper masks.* With :math:`\sigma_s^2 = S t_s^2` equation (3) reads
    :math:`\mu_s^2 = (w_s \Delta_s)^2 [1/x_s + S / \sum_H x_i] / (S + 1)`. For equal K the optimum is
    :math:`x = K (1 + S/S_H) / (S + 1)`, the paper's symmetric setting. For unequal K the solution for
    uniform masks is scaled up until every site is within its mu: valid, but not claimed to be optimal.

    *No masks.* :math:`x_s = K_s`.
    """
    w = validate.weights(weights)
    n_sites = len(w)
    if (w == 0).any():
        raise InputError(f"weights must be above 0, got 0 for site {int(np.argmin(w))}; exclude that site")
    budget = validate.positive_per_site("mu", mu, n_sites)
    shift = validate.positive_per_site("sensitivities", sensitivities, n_sites)
    n_colluding = validate.colluding(n_colluding, n_sites)
    need = (w * shift / budget) ** 2
    if mask == "none":
        return Cape(0.0, need / w**2, w, n_colluding)
    cover = _least_noise(need, n_colluding)
    if mask == "uniform":
        return Cape(math.inf, cover / w**2, w, n_colluding)
    if mask == "paper":
        return _scaled_paper_masks(cover / w**2, w, n_colluding, shift, budget)
    raise InputError(f"mask must be 'uniform', 'paper' or 'none', got {mask!r}")


def _least_noise(need: FloatArray, n_colluding: int) -> FloatArray:
    r"""Minimise sum x subject to sum_{i in H} x_i >= max_{s in H} K_s for every H of S_H sites.

    Exchanging the values of two sites with K_a > K_b and x_a < x_b preserves every constraint, so some
    optimum is sorted like K. Number the sites by decreasing K, let n = S_C + 1, m = S - n and P the sum of
    the last m values. The constraints become x_s >= K_s - P for s <= n, and sorting requires x_n >= P/m.
    So x_s = max(K_s - P, P/m) for s <= n, P/m for s > n, and the total

    .. math:: P + \sum_{s \le n} \max(K_s - P, P/m)

    is convex and piecewise linear in P with kinks at K_s m/(m+1). Its slope becomes positive at the
    j-th smallest kink, j = floor(S_C m/(m+1)) + 1. With m = 0 (all others collude) x = K: local noise.
    """
    n_sites, n = len(need), n_colluding + 1
    m = n_sites - n
    order = np.argsort(-need, kind="stable")
    largest = need[order[:n]]
    if m == 0:
        return need.copy()
    j = (n_colluding * m) // (m + 1) + 1
    tail = largest[n - j] * m / (m + 1)
    x = np.empty(n_sites)
    x[order] = tail / m
    x[order[:n]] = np.maximum(largest - tail, tail / m)
    return x


def _scaled_paper_masks(
    local_var: FloatArray, weights: FloatArray, n_colluding: int, shift: FloatArray, budget: FloatArray
) -> Cape:
    """Scale local_var, and masks of S times that variance, until each site's mu is within its budget."""
    n_sites = len(weights)
    trial = Cape(n_sites * local_var, local_var, weights, n_colluding)
    scale = float(np.max((trial.mu(shift) / budget) ** 2))
    return Cape(scale * n_sites * local_var, scale * local_var, weights, n_colluding)
