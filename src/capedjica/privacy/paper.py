r"""Formulas of the paper, shown alongside the exact account. None of them is a guarantee of this package.

Imtiaz et al., "Improved Differentially Private Decentralized Source Separation for fMRI Data". Each
docstring says where the formula appears in the paper and by how much it differs from the exact value of
:class:`capedjica.privacy.Cape` and :class:`capedjica.privacy.ExactAccountant`. Names follow the paper:
N samples in total, S sites, S_C colluding sites, tau the standard deviation of a site's noise, epsilon_i the
privacy parameter of one iteration.
"""

from __future__ import annotations

import math

from capedjica.errors import InputError
from capedjica.privacy import validate

_SQRT_2PI = math.sqrt(2 * math.pi)


def gaussian_mechanism_tau(sensitivity: float, epsilon: float, delta: float) -> float:
    r"""Noise of the classical Gaussian mechanism (Definition 3): tau = Delta/epsilon sqrt(2 log(1.25/delta)).

    Stated for epsilon < 1, where it adds more noise than needed: at epsilon = 0.5, delta = 1e-5 it is
    1.38 times the exact Delta / gaussian_mu(epsilon, delta). Above epsilon = 8.42 (6.77 at delta = 1e-2)
    it adds too little.
    """
    validate.positive("sensitivity", sensitivity)
    validate.positive("epsilon", epsilon)
    validate.probability("delta", delta)
    return sensitivity / epsilon * math.sqrt(2 * math.log(1.25 / delta))


def theorem_1_most_colluding(n_sites: int) -> int:
    """S_C = ceil(S/3) - 1, the most colluding sites that Theorem 1 is stated for."""
    return math.ceil(n_sites / 3) - 1


def cape_mu_z(tau: float, n_samples: int, n_sites: int, n_colluding: int) -> float:
    r"""Mean of the privacy loss of CAPE, Theorem 1, equation (1) of the paper.

    .. math:: \mu_z = \frac{S^3}{2\tau^2 N^2 (1+S)} \left(\frac{S - S_C + 2}{S - S_C}
              + \frac{9 S_C^2 / (S - S_C)}{S(1+S) - 3S_C^2}\right)

    The implied shift of the adversary's view is :math:`\sqrt{2\mu_z}`; the exact one is
    ``Cape(tau**2, tau**2 / S, ...).mu(S / N)``. The formula understates its square, because the view omits
    what the secure sum publishes in addition to the colluding sites' masks, and the inverse covariance has
    2/S_H where 1/(S_C + 1) is correct: by a factor of 1.27 for S=4, S_C=1; 2.12 for S=30, S_C=9; and, without
    collusion, 1.33 at S=4 and 1.88 at S=30, tending to 2.
    """
    validate.positive("tau", tau)
    validate.count("n_samples", n_samples)
    s = validate.count("n_sites", n_sites)
    c = validate.colluding(n_colluding, s)
    most = theorem_1_most_colluding(s)
    if c > most:
        raise InputError(f"n_colluding must be at most ceil(S/3) - 1 = {most} for Theorem 1; got {c}")
    spread = (s - c + 2) / (s - c) + (9 * c**2 / (s - c)) / (s * (1 + s) - 3 * c**2)
    return s**3 / (2 * tau**2 * n_samples**2 * (1 + s)) * spread


def cape_delta(epsilon: float, tau: float, n_samples: int, n_sites: int, n_colluding: int) -> float:
    r"""delta_cape of Theorem 1, stated for epsilon in (0, 1).

    .. math:: \delta = 2\frac{\sigma_z}{\epsilon-\mu_z}\varphi\left(\frac{\epsilon-\mu_z}{\sigma_z}\right)

    This tail bound adds a factor of 2 to the understated mu_z, so it errs in both directions: too large where
    epsilon is small relative to the shift, too small in the tail. With S=30, S_C=9 and tau N = 150 it gives
    3.2e-5 at epsilon = 0.9, where the exact delta is 2.3e-4, and 2.7e-2 at epsilon = 0.5, where the exact
    delta is 8.4e-3. Returns 1 if epsilon <= mu_z or the formula exceeds 1, where the bound is vacuous.
    """
    validate.positive("epsilon", epsilon)
    mu_z = cape_mu_z(tau, n_samples, n_sites, n_colluding)
    if epsilon <= mu_z:
        return 1.0
    x = (epsilon - mu_z) / math.sqrt(2 * mu_z)
    return min(1.0, 2 / x * math.exp(-x * x / 2) / _SQRT_2PI)


def rdp_sigma_squared(tau_pool: float, sensitivity: float, learning_rate: float) -> float:
    r"""sigma_W^2 (or sigma_b^2) as printed in Section IV-A: rho^2 tau_pool^2 / Delta.

    The formula is not scale-invariant: scaling by the learning rate is post-processing, and tau must be
    expressed in units of the sensitivity. With rho = 0.015/ln 20 the printed value is rho^2 Delta =
    2.5e-5 Delta times the correct (tau_pool / Delta)^2, so the epsilon computed from it is far too large.
    """
    return learning_rate**2 * tau_pool**2 / validate.positive("sensitivity", sensitivity)


def rdp_epsilon(n_iterations: int, sigma_w2: float, sigma_b2: float, delta: float) -> float:
    r"""Overall epsilon of Section IV-A: alpha_opt J / (2 sigma_RDP^2) + log(1/delta)/(alpha_opt - 1).

    Here alpha_opt = 1 + sqrt(2/J sigma_RDP^2 log(1/delta)) and 1/sigma_RDP^2 = 1/sigma_W^2 + 1/sigma_b^2.
    A valid upper bound for the releases it covers; at sigma_W^2 = sigma_b^2 = 0.25, J = 100 and delta =
    1e-5 it gives 535.7 where the exact epsilon is 519.7. It covers only the gradient descent, not the PCA.
    """
    sigma2 = 1 / (1 / validate.positive("sigma_w2", sigma_w2) + 1 / validate.positive("sigma_b2", sigma_b2))
    j, delta = validate.count("n_iterations", n_iterations), validate.probability("delta", delta)
    # alpha_opt - 1, which may be far below the last bit of alpha_opt.
    above = math.sqrt(2 * sigma2 / j * -math.log(delta))
    return (1 + above) * n_iterations / (2 * sigma2) - math.log(delta) / above


def moments_epsilon(n_iterations: int, sensitivity: float, sigma: float, delta: float) -> float:
    r"""Larger root of the quadratic as printed (Section IV-B and Appendix G).

    :math:`\frac{\sigma^2}{2J\Delta^2}\epsilon^2 - \epsilon + \frac{J\Delta^2}{8\sigma^2} + \log\delta = 0`.
    The linear term should be -epsilon/2. As printed the root is pessimistic: 2.8 times the corrected value at
    J Delta^2 / sigma^2 = 800 and delta = 1e-5, 2.0 times at 100, 1.1 times at 1.
    """
    ratio = validate.positive("sensitivity", sensitivity) / validate.positive("sigma", sigma)
    a = validate.count("n_iterations", n_iterations) * ratio * ratio
    return a * (1 + math.sqrt(1 - 2 / a * (a / 8 + math.log(validate.probability("delta", delta)))))


def capedjica_naive(n_iterations: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Theorem 2: (2 J epsilon, 2 J delta), from Theorem 1's (epsilon, delta) for each of the 2 J releases.

    Naive composition on top of Theorem 1's optimistic delta.
    """
    return 2 * n_iterations * epsilon, 2 * n_iterations * delta
