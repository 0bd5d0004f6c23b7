r"""Integer arithmetic of one release: the grid, the noise of every participant, and the exact mu of each.

For participants U with M subjects in total, site s adds up q_m = rint(c_s v_m / step) over its subjects,
where c_s = w_s M / M_s (1 when sites are weighted by size), and sends

.. math:: y_s = F_s + G_s + E_s \mod 2^{64}, \qquad F_s = \sum_m q_m ,

with G_s a discrete Gaussian of scale n_s and E_s a mask. The mean is step/M times the centred lift of
sum y - sum E. In these units one subject changes F_s by at most

.. math:: \Delta_s = \text{spread} \cdot C c_s / \text{step} + \sqrt d                                (1)

(each of the two roundings changes a vector by at most sqrt(d)/2), and :class:`capedjica.privacy.Cape` gives
the exact mu from the n_s. For a cross-moment the site sends F_s = rint(c_s A_s / step) instead of the sum;
its sensitivity (:class:`capedjica.mechanisms.contract.CrossMoment`) replaces spread C in (1), and its largest
norm replaces C in (2). The step is a power of two, small enough that the second term of (1) is negligible
compared with the first, and large enough that the sum never wraps around the ring:

.. math:: M (C \max c / \text{step} + 1) + 12 \sqrt{\textstyle\sum n_s^2} < 2^{62} .                  (2)

All these values follow from the contract and the list of participants, so each site computes them itself;
nothing is taken from a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Query
from capedjica.privacy import Cape, calibrate
from capedjica.privacy.reserved_delta import check_reserve
from capedjica.securesum.discrete_gaussian import grid_delta
from capedjica.securesum.noise import MAX_SIGMA, total_variation_bound, word_variation_bound
from capedjica.securesum.ring import SUM_LIMIT
from capedjica.tools.arrays import FloatArray

# Largest total number of words of all slots of a block.
MAX_BLOCK_WORDS: Final = 1 << 24
# log2 of the target for the largest grid noise; and the smallest noise accepted, for which the grid's
# contribution is still negligible.
_NOISE_BITS: Final = 34
_LEAST_NOISE: Final = 2.0**16
# Without noise the grid is this much finer than the clip.
_EXACT_BITS: Final = 36
# Each target is undershot by this fraction, so that rounding never raises a total above the budget.
HEADROOM: Final = 1e-9


@dataclass(frozen=True)
class ReleasePlan:
    """The plan of one release for each participant, in grid steps.

    Attributes
    ----------
    participants : tuple of str
        U, in roster order.
    step : float
        A power of two.
    scale : dict
        c_s, the factor by which site s multiplies its subjects' vectors.
    n_subjects : int
        M, the number of subjects of all participants.
    noise : dict
        n_s, scale of the discrete Gaussian that site s adds; 0 for none.
    mask : dict
        Scale of site s's Gaussian mask; infinite for uniform masks, 0 for none.
    curator_noise : float
        Scale of the noise that a trusted curator adds (``pooled``).
    mu : dict
        Exact mu of this release for one subject of each participant, against the adversaries that the
        mechanism covers.
    grid_delta : dict
        The grid's contribution to delta, at every epsilon, for one subject of each participant.
    """

    query: Query
    participants: tuple[str, ...]
    step: float
    scale: dict[str, float]
    n_subjects: int
    noise: dict[str, float]
    mask: dict[str, float]
    curator_noise: float
    mu: dict[str, float]
    grid_delta: dict[str, float]

    @property
    def output_std(self) -> float:
        """Standard deviation of the noise on each value of the mean."""
        variance = math.fsum(n**2 for n in self.noise.values()) + self.curator_noise**2
        return math.sqrt(variance) * self.step / self.n_subjects


def plan_release(
    contract: Contract,
    query: Query,
    fraction: float,
    participants: tuple[str, ...],
    invited: tuple[str, ...] | None = None,
) -> ReleasePlan:
    """Return the plan of a release that may use ``fraction`` of every site's budget (of mu^2).

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    query : Query
        The query.
    fraction : float
        Fraction of mu^2, in (0, 1].
    participants : tuple of str
        The sites that take part in the release.
    invited : tuple of str, optional
        The sites that generated masks; only the paper's masks depend on it.
    """
    if contract.mechanism != "cape" or invited is None:
        invited = participants
    _check_participants(contract, participants, invited)
    plan = _Planner(contract, query, participants, invited).plan(fraction)
    if contract.mechanism != "none":
        _check_reserve(contract, plan)
    return plan


def _check_reserve(contract: Contract, plan: ReleasePlan) -> None:
    """Refuse a release that would use a larger share of a site's reserve than of its budget.

    The share of the budget is that charged to the ledger. It may be less than the requested fraction if other
    sites need more noise.
    """
    distance = stream_distance(plan.query.size, len(contract.roster.names))
    for name, epsilon in zip(contract.roster.names, contract.epsilon, strict=True):
        if name in plan.mu:
            share = (plan.mu[name] / contract.total_mu[name]) ** 2
            try:
                check_reserve(epsilon, contract.delta, share, plan.grid_delta[name], distance)
            except InputError as error:
                raise InputError(f"'{plan.query.label}' at site {name}: {error}") from None


def stream_distance(size: int, n_sites: int) -> float:
    r"""Bound the total-variation distance from ideal of all random numbers drawn for one release.

    Every site draws noise and, with the paper's masks, a Gaussian mask, each under its own key
    (:class:`capedjica.securesum.noise.NoiseSource`); a curator may also draw noise. The uniform masks of a
    block, and the streams of its secure sum (one for each pair of sites and one for each site), have at most
    ``MAX_BLOCK_WORDS`` words each. The whole block is counted for every release that uses it. Numbers drawn
    for a release that was never made are not combined with data, so they need no bound.

    Parameters
    ----------
    size : int
        Number of values of the release.
    n_sites : int
        S.
    """
    per_release = 2 * (n_sites + 1) * total_variation_bound(size)
    streams = n_sites + n_sites * (n_sites + 1) // 2
    return per_release + streams * word_variation_bound(MAX_BLOCK_WORDS)


def _check_participants(contract: Contract, participants: tuple[str, ...], invited: tuple[str, ...]) -> None:
    if strangers := set(participants) - set(invited):
        raise InputError(f"{', '.join(sorted(strangers))} cannot take part in this release: no masks")
    if contract.mechanism == "cape" and len(participants) <= contract.roster.n_colluding:
        raise InputError(
            f"a release needs at least {contract.roster.n_colluding + 1} participating sites, because "
            f"{contract.roster.n_colluding} may collude; got {len(participants)}"
        )


class _Planner:
    """The arithmetic of one release, in units of the sum over subjects."""

    def __init__(
        self, contract: Contract, query: Query, participants: tuple[str, ...], invited: tuple[str, ...]
    ) -> None:
        self.contract, self.query = contract, query
        self.participants, self.invited = participants, invited
        self.sizes = np.array([contract.enrolled[name] for name in participants], dtype=np.float64)
        self.n_subjects = int(self.sizes.sum())
        self.weights = _weights(contract, participants)
        self.scale = self.weights * self.n_subjects / self.sizes
        self.sensitivity = np.array([query.sensitivity(name) for name in participants])
        # Largest norm of a site's sum, per subject.
        self.longest = max(
            query.largest(name) * scale for name, scale in zip(participants, self.scale.tolist(), strict=True)
        )

    def plan(self, fraction: float) -> ReleasePlan:
        targets = np.array([self.contract.total_mu[name] for name in self.participants])
        targets *= math.sqrt(fraction) * (1 - HEADROOM)
        noise, curator = self._noise(targets)
        step = self._step(noise, curator)
        # Slightly more noise compensates for the rounding term sqrt(d) in (1) and keeps mu unchanged.
        inflation = float(np.max(self._shift(step) * step / self._shift_of_reals()))
        noise, curator = noise * inflation / step, curator * inflation / step
        mask = self._mask(noise, fraction)
        if self.participants != self.invited and self.contract.masking == "paper":
            noise = self._noise_under_masks(noise, mask, step, targets)
        self._check_grid(noise, mask, curator, step)
        mu = self._mu(noise, mask, curator, step)
        return ReleasePlan(
            query=self.query,
            participants=self.participants,
            step=step,
            scale=self._by_name(self.scale),
            n_subjects=self.n_subjects,
            noise=self._by_name(noise),
            mask=self._by_name(mask),
            curator_noise=curator,
            mu=self._by_name(mu),
            grid_delta=self._by_name(self._grid_delta(noise, mask, curator, mu)),
        )

    def _by_name(self, values: Iterable[float]) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.participants, values, strict=True)}

    def _shift_of_reals(self) -> FloatArray:
        """Return the sensitivity of the sum to one subject, before rounding."""
        return self.sensitivity * self.scale

    def _shift(self, step: float) -> FloatArray:
        """Return Delta_s of equation (1), in grid steps."""
        return self._shift_of_reals() / step + math.sqrt(self.query.size)

    def _noise(self, targets: FloatArray) -> tuple[FloatArray, float]:
        """Return the noise of each site and of the curator on the sum, before the rounding correction."""
        silent = np.zeros(len(self.participants))
        match self.contract.mechanism:
            case "none":
                return silent, 0.0
            case "pooled":
                return silent, float(np.max(self._shift_of_reals() / targets))
            case "conventional" | "local":
                return self._shift_of_reals() / targets, 0.0
            case "cape":
                site_shift = self.sensitivity / self.sizes
                cape = calibrate(
                    targets,
                    site_shift,
                    self.weights,
                    # defence: noise-for-the-survivors
                    self.contract.roster.n_colluding,
                    self.contract.masking,
                )
                return np.sqrt(cape.local_var) * self.scale * self.sizes, 0.0

    def _step(self, noise: FloatArray, curator: float) -> float:
        """Return the finest power of two that keeps the noise near 2^34 and the sum inside the ring."""
        longest = self.longest
        largest = max(float(noise.max()), curator)
        finest = math.log2(largest) - _NOISE_BITS if largest else math.log2(longest) - _EXACT_BITS
        reach = self.n_subjects * longest + 13 * math.sqrt(math.fsum(noise**2) + curator**2)
        return float(2.0 ** math.ceil(max(finest, math.log2(reach / (SUM_LIMIT / 2)))))

    def _check_grid(self, noise: FloatArray, mask: FloatArray, curator: float, step: float) -> None:
        """Refuse noise outside the range of the grid, the sampler or the ring: equation (2)."""
        scales = [*noise[noise > 0], *mask[np.isfinite(mask) & (mask > 0)], *([curator] if curator else [])]
        sum_of_subjects = self.n_subjects * (self.longest / step + 1)
        reach = sum_of_subjects + 12 * math.sqrt(math.fsum(noise**2) + curator**2)
        if max(scales, default=0) > MAX_SIGMA or reach >= SUM_LIMIT:
            problem, remedy = "large", "larger"
        elif scales and min(scales) < _LEAST_NOISE:
            problem, remedy = "small", "smaller"
        else:
            return
        raise InputError(
            f"'{self.query.label}': the noise is too {problem} for exact integer arithmetic "
            f"with {self.n_subjects} subjects and clip {self.query.clip:g}; use a {remedy} epsilon"
        )

    def _mask(self, noise: FloatArray, fraction: float) -> FloatArray:
        """Return the scale of the masks: for the paper's, sqrt(S) times the noise for the invited sites."""
        if self.contract.mechanism != "cape":
            return np.zeros(len(self.participants))
        if self.contract.masking == "uniform":
            return np.full(len(self.participants), math.inf)
        if self.participants == self.invited:
            return math.sqrt(len(self.participants)) * noise
        made = plan_release(self.contract, self.query, fraction, self.invited).mask
        return np.array([made[name] for name in self.participants])

    def _noise_under_masks(
        self, noise: FloatArray, mask: FloatArray, step: float, targets: FloatArray
    ) -> FloatArray:
        """Return the local noise, scaled so that every site is within its target with these masks."""

        def excess(log_factor: float) -> float:
            mu = self._mu(noise * math.exp(log_factor), mask, 0.0, step)
            return float(np.max(mu / targets)) - 1

        # Wide enough for any noise that fits on the grid; other noise is refused later.
        low, high = -40.0, 40.0
        if excess(low) <= 0:
            return noise * math.exp(low)
        return noise * math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-12)) + HEADROOM)

    def _mu(self, noise: FloatArray, mask: FloatArray, curator: float, step: float) -> FloatArray:
        """Return the exact mu of each participant, from the integers that will be sent."""
        shift = self._shift(step)
        match self.contract.mechanism:
            case "none":
                return np.full(len(shift), math.inf)
            case "pooled":
                return shift / curator
            case "conventional" | "local":
                return shift / noise
            case "cape":
                per_site = self.scale * self.sizes
                cape = Cape(
                    (mask / per_site) ** 2,
                    (noise / per_site) ** 2,
                    self.weights,
                    # defence: colluders-among-survivors
                    self.contract.roster.n_colluding,
                )
                return cape.mu(shift / per_site)

    def _grid_delta(self, noise: FloatArray, mask: FloatArray, curator: float, mu: FloatArray) -> list[float]:
        """Bound the grid's contribution to delta (:func:`capedjica.securesum.discrete_gaussian.grid_delta`).

        With Gaussian masks the view is a message of each honest site followed by the sum of their masks, each
        a discrete Gaussian given the previous ones; the one with the least noise has scale sqrt(r) n_s. Each
        coordinate is then rounded S_H + 1 times.
        """
        size = self.query.size
        match self.contract.mechanism:
            case "none":
                return [0.0] * len(mu)
            case "pooled":
                return [grid_delta(float(m), [curator], size) for m in mu]
            case "conventional" | "local":
                return [grid_delta(float(m), [float(n)], size) for m, n in zip(mu, noise, strict=True)]
            case "cape":
                wide = np.isinf(mask)
                share = np.where(wide, 1.0, 1 / (1 + (noise / np.where(wide, 1.0, mask)) ** 2))
                hidden = np.sort(np.sqrt(share) * noise)[: len(noise) - self.contract.roster.n_colluding]
                rounds = 1 if wide.all() else len(hidden) + 1
                return [grid_delta(float(m), hidden.tolist(), size * rounds) for m in mu]


def _weights(contract: Contract, participants: tuple[str, ...]) -> FloatArray:
    """Return the weights of the participants, from the contract or by size, rescaled to add up to 1."""
    given = contract.weights or contract.subjects
    by_name = dict(zip(contract.roster.names, given, strict=True))
    weights = np.array([by_name[name] for name in participants], dtype=np.float64)
    normalised: FloatArray = weights / weights.sum()
    return normalised
