r"""Formulas the paper prints that only its figures need. None of them is a guarantee.

Those that plans and reports show too are in :mod:`capedjica.privacy.paper`, which also says whose names these
are. Each docstring says where the formula stands and by how much it differs from the exact value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from capedjica.errors import InputError
from capedjica.privacy import Cape, validate
from capedjica.privacy.paper import cape_mu_z


def _gaussian_mechanism_delta(sensitivity: float, epsilon: float, tau: float) -> float:
    """Invert the tau of the classical Gaussian mechanism for delta; 1 where the formula exceeds 1."""
    ratio = validate.positive("epsilon", epsilon) * validate.positive("tau", tau) / sensitivity
    return min(1.0, 1.25 * math.exp(-ratio * ratio / 2))


def cape_sigma_z(tau: float, n_samples: int, n_sites: int, n_colluding: int) -> float:
    """Spread of the privacy loss of CAPE, Theorem 1, equation (2): sigma_z^2 = 2 mu_z."""
    return math.sqrt(2 * cape_mu_z(tau, n_samples, n_sites, n_colluding))


def delta_pooled(epsilon: float, tau: float, n_samples: int, n_sites: int) -> float:
    """delta_pool of Section III-A: the pooled mean with noise tau/S, by the classical Gaussian mechanism.

    The exact value is ``gaussian_delta(S / (N tau), epsilon)``: at N tau / S = 5 and epsilon = 0.5 it is
    5.1e-4 where the formula gives 5.5e-2.
    """
    s, n = validate.count("n_sites", n_sites), validate.count("n_samples", n_samples)
    return _gaussian_mechanism_delta(1 / n, epsilon, tau / s)


def delta_conventional(epsilon: float, tau: float, n_samples: int, n_sites: int) -> float:
    """delta_conv of Section III-A: independent noise with the same variance at the aggregator as pooled.

    The mean of S sites has variance (tau/S)^2 when each adds tau/sqrt(S), to a statistic of sensitivity
    S/N. The exact value has mu = S^1.5 / (N tau).
    """
    s, n = validate.count("n_sites", n_sites), validate.count("n_samples", n_samples)
    return _gaussian_mechanism_delta(s / n, epsilon, tau / math.sqrt(s))


def gain(n_sites: int) -> float:
    """G = tau_conv^2 / tau_cape^2 = S (Proposition 1): the two schemes at the same tau.

    The same tau is not the same privacy. At equal exact epsilon the gain is S_H for uniform masks and
    (S + 1) / (1 + S/S_H) for the paper's: 3 and 2.14 instead of 4 at S=4, S_C=1.
    """
    return float(validate.count("n_sites", n_sites))


def sample_size_ratio(sizes: ArrayLike) -> float:
    """H(n) = tau_cape^2 / tau_pool^2 = N^2/S^3 sum 1/N_s^2 for unequal sites (Remark 2).

    A consequence of averaging sites with equal weights. With weights N_s/N and equal w_s t_s the exact
    ratio at equal epsilon is S/S_H for uniform masks, whatever the sizes.
    """
    return low_sensitivity_ratio(lambda n: 1 / n, sizes)


def sample_size_ratio_bounds(n_samples: int, n_sites: int) -> tuple[float, float]:
    """Return the bounds 1 <= H(n) <= N^2/S^3 (1/(N-S+1)^2 + S - 1) of Remark 2; both are attained."""
    s = validate.count("n_sites", n_sites)
    n = validate.count("n_samples", n_samples, minimum=s)
    return 1.0, n**2 / s**3 * (1 / (n - s + 1) ** 2 + s - 1)


def low_sensitivity_ratio(sensitivity: Callable[[float], float], sizes: ArrayLike) -> float:
    """H(n) = sum Delta^2(N_s) / (S^3 Delta^2(N)) for a statistic of sensitivity Delta(N) (Proposition 2).

    Compares noise at the same tau, as :func:`gain` does, not at the same privacy.
    """
    n = validate.positive_per_site("sizes", sizes, np.size(sizes))
    top = math.fsum(sensitivity(float(size)) ** 2 for size in n)
    return top / (len(n) ** 3 * sensitivity(math.fsum(n)) ** 2)


def low_sensitivity_conditions(sensitivity: Callable[[float], float], sizes: ArrayLike) -> tuple[bool, bool]:
    """Proposition 2: (Delta(N/S) = S Delta(N), S^3 Delta^2(N) = sum Delta^2(N_s)).

    The first is the condition for convex Delta and equal sites, the second the general one; where it
    holds H(n) = 1. Equal up to rounding, 1e-12 relative.
    """
    n_sites, total = np.size(sizes), float(np.sum(sizes))
    even = math.isclose(sensitivity(total / n_sites), n_sites * sensitivity(total), rel_tol=1e-12)
    return even, math.isclose(low_sensitivity_ratio(sensitivity, sizes), 1.0, rel_tol=1e-12)


def asymmetric_cape(tau: ArrayLike, tau_pool: float, weights: ArrayLike, n_colluding: int | str) -> Cape:
    r"""Noise of the asymmetric scheme (Section III-C): solve the paper's linear system.

    With :math:`\tau_{gs}^2 = \tau_{pool}^2 / (\mu_s^2 S)` and :math:`u_s = \mu_s^2 \sigma_s^2` the system is
    :math:`(1 - 2/S) u_s + S^{-2} \sum_i u_i = \mu_s^2 \tau_s^2 - \tau_{pool}^2/S =: c_s`. Summing it gives
    :math:`\sum u = S/(S-1) \sum c`, and then each u_s.

    The result is a :class:`Cape`, so its exact mu and epsilon follow; the paper's own analysis of this
    case is :func:`asymmetric_mu_z`.

    Raises
    ------
    InputError
        With two sites, where the system is singular, and where a mask variance would be negative,
        naming the site.
    """
    w = validate.weights(weights)
    s = len(w)
    if s < 3:
        raise InputError(f"the paper's asymmetric system is singular for {s} sites; it needs at least 3")
    local = validate.positive_per_site("tau", tau, s)
    pooled = validate.positive("tau_pool", tau_pool) ** 2
    c = w**2 * local**2 - pooled / s
    u = (c - math.fsum(c) / (s * (s - 1))) / (1 - 2 / s)
    if (u < 0).any():
        site = int(np.argmin(u))
        raise InputError(
            f"the paper's asymmetric system has no solution: the mask of site {site} would need the negative "
            f"variance {u[site] / w[site] ** 2:.4g} (its tau is {local[site]:g}, its weight {w[site]:.4g}, "
            f"tau_pool {tau_pool:g})"
        )
    return Cape(u / w**2, pooled / (w**2 * s), w, n_colluding)


def asymmetric_mu_z(cape: Cape, honest: Sequence[int], sensitivity: float) -> float:
    r"""mu_z = v' Sigma^-1 v / 2 with the covariance printed for the asymmetric case (Section III-C).

    The first of ``honest`` is the site whose data change. As printed, the partial sum of masks is the
    unweighted one (the secure sum publishes the weighted one) and its covariance with the messages mixes
    both, :math:`\sigma_s^2 - \sum_{i \in H} \mu_i^2\sigma_i^2 / (\mu_s S)`. The matrix need not even be
    positive definite: for S=4, S_C=1 and the symmetric scheme, 2 mu_z comes out as -1.548 where the exact
    ``cape.mu(1)**2`` is 1.867. Elsewhere it falls on either side.
    """
    h = np.asarray(honest)
    s, w, var = cape.n_sites, cape.weights, cape.mask_var
    weighted = w**2 * var
    across = (w[h, None] / w[None, h] * var[h, None] + w[None, h] / w[h, None] * var[None, h]) / s
    sigma = np.empty((len(h) + 1, len(h) + 1))
    sigma[:-1, :-1] = weighted.sum() / (np.outer(w[h], w[h]) * s**2) - across
    tau_e = (1 - 2 / s) * var + weighted.sum() / (w**2 * s**2)
    np.fill_diagonal(sigma[:-1, :-1], (tau_e + cape.local_var)[h])
    sigma[-1, :-1] = sigma[:-1, -1] = var[h] - weighted[h].sum() / (w[h] * s)
    sigma[-1, -1] = var[h].sum()
    v = np.zeros(len(h) + 1)
    v[0] = sensitivity
    return float(v @ np.linalg.solve(sigma, v)) / 2


def rdp_sigma_squared_corrected(tau_pool: float, sensitivity: float) -> float:
    """sigma_W^2 (or sigma_b^2) as it should read, (tau_pool / Delta)^2.

    It still covers only what the aggregator publishes, not what it sees: exact in place of 1/sigma^2 is
    the mu^2 of :class:`Cape`, S/(S+1) (1 + S/S_H) times larger for the paper's masks.
    """
    return (tau_pool / validate.positive("sensitivity", sensitivity)) ** 2


def rdp_optimal_order(n_iterations: int, sigma_w2: float, sigma_b2: float, delta: float) -> float:
    r"""alpha_opt = 1 + sqrt(2/J sigma_RDP^2 log(1/delta)), 1/sigma_RDP^2 = 1/sigma_W^2 + 1/sigma_b^2."""
    j, delta = validate.count("n_iterations", n_iterations), validate.probability("delta", delta)
    sigma2 = 1 / (1 / validate.positive("sigma_w2", sigma_w2) + 1 / validate.positive("sigma_b2", sigma_b2))
    return 1 + math.sqrt(2 * sigma2 / j * -math.log(delta))


def moments_epsilon_corrected(n_iterations: int, sensitivity: float, sigma: float, delta: float) -> float:
    """Larger root with the linear term corrected to -epsilon/2.

    With A = J Delta^2 / sigma^2 it is A/2 + sqrt(2 A log(1/delta)), equal to
    :func:`capedjica.privacy.paper.rdp_epsilon` for the same A.
    """
    ratio = validate.positive("sensitivity", sensitivity) / validate.positive("sigma", sigma)
    a = validate.count("n_iterations", n_iterations) * ratio * ratio
    return a / 2 + math.sqrt(2 * a * -math.log(validate.probability("delta", delta)))
