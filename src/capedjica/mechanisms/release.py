r"""One release in integers: the grid, the noise of every participant, and the exact mu of each.

For participants U with M subjects in all, site s adds up q_m = rint(c_s v_m / step) over its subjects, where
c_s = w_s M / M_s (1 when sites are weighted by size), and sends

.. math:: y_s = F_s + G_s + E_s \mod 2^{64}, \qquad F_s = \sum_m q_m ,

with G_s a discrete Gaussian of scale n_s and E_s a mask. The mean is step/M times the centred lift of
sum y - sum E. In these units one subject moves F_s by at most

.. math:: \Delta_s = \text{spread} \cdot C c_s / \text{step} + \sqrt d                                (1)

(each of the two roundings moves a vector by at most sqrt(d)/2), and :class:`capedjica.privacy.Cape` gives
the exact mu from the n_s. Of a cross-moment the site sends F_s = rint(c_s A_s / step) in place of the sum,
and its sensitivity (:class:`capedjica.mechanisms.contract.CrossMoment`) stands for spread C in (1), its
largest norm for C in (2). The step is a power of two, so small that the second term of (1) vanishes beside
the first and so large that the sum never leaves the ring:

.. math:: M (C \max c / \text{step} + 1) + 12 \sqrt{\textstyle\sum n_s^2} < 2^{62} .                  (2)

Every number here follows from the contract and the list of participants, so each site computes all of it
for itself; nothing is taken from a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import brentq

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Query
from capedjica.privacy import Cape, calibrate
from capedjica.privacy.reserved_delta import check_reserve
from capedjica.securesum.discrete_gaussian import grid_delta
from capedjica.securesum.noise import MAX_SIGMA, total_variation_bound, word_variation_bound
from capedjica.securesum.ring import SUM_LIMIT
from capedjica.tools.arrays import FloatArray

# The most numbers of all slots of a block together.
MAX_BLOCK_WORDS: Final = 1 << 24
# log2 of the largest grid noise aimed at, and of the smallest accepted (where the grid still adds nothing).
_NOISE_BITS: Final = 34
_LEAST_NOISE: Final = 2.0**16
# Without noise the grid is this much finer than the clip.
_EXACT_BITS: Final = 36
# Each target is met from below by this much, so that rounding never brings a total above the budget.
HEADROOM: Final = 1e-9


@dataclass(frozen=True)
class ReleasePlan:
    """What each participant does in one release, in grid steps.

    Attributes
    ----------
    participants : tuple of str
        U, in the order of the roster.
    step : float
        A power of two.
    scale : dict
        c_s, by which site s multiplies its subjects' vectors.
    n_subjects : int
        M, over the participants.
    noise : dict
        n_s, scale of the discrete Gaussian that site s adds; 0 for none.
    mask : dict
        Scale of site s's Gaussian mask; infinite for uniform masks, 0 for none.
    curator_noise : float
        What a trusted curator adds (``pooled``).
    mu : dict
        Exact mu of this release for one subject of each participant, against whom the mechanism protects.
    grid_delta : dict
        What the grid adds to delta, at every epsilon, for one subject of each participant.
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
        """Standard deviation of the noise on each number of the mean."""
        variance = math.fsum(n**2 for n in self.noise.values()) + self.curator_noise**2
        return math.sqrt(variance) * self.step / self.n_subjects


def plan_release(
    contract: Contract,
    query: Query,
    fraction: float,
    participants: tuple[str, ...],
    invited: tuple[str, ...] | None = None,
) -> ReleasePlan:
    """Return what each participant does when a release may use ``fraction`` of every budget (of mu^2).

    Parameters
    ----------
    contract : Contract
        What was agreed.
    query : Query
        What is asked.
    fraction : float
        Part of mu^2, in (0, 1].
    participants : tuple of str
        Those who take part to the end.
    invited : tuple of str, optional
        Those who made masks; only the paper's masks depend on it.
    """
    if contract.mechanism != "cape" or invited is None:
        invited = participants
    _check_participants(contract, participants, invited)
    plan = _Planner(contract, query, participants, invited).plan(fraction)
    if contract.mechanism != "none":
        _check_reserve(contract, plan)
    return plan


def _check_reserve(contract: Contract, plan: ReleasePlan) -> None:
    """Refuse a release that would use more of any site's reserve than it is charged of its budget.

    The charge is what a ledger adds up. It may be less than the fraction that was asked for, where others
    need more noise.
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
    r"""Bound the distance from ideal of all that is drawn for one release, whoever draws it and how often.

    Every site draws noise and, with the paper's masks, a Gaussian mask, each under a key of its own
    (:class:`capedjica.securesum.noise.NoiseSource`); a curator may draw noise too. The uniform masks of a
    block, and the streams of its secure sum, one for each pair of sites and one for each site, have at most
    ``MAX_BLOCK_WORDS`` words each. All of a block is counted with every release that is made out of it. What
    was drawn for a release that was not made is not seen with any data, so it needs no bound.

    Parameters
    ----------
    size : int
        Numbers of the release.
    n_sites : int
        S.
    """
    per_release = 2 * (n_sites + 1) * total_variation_bound(size)
    streams = n_sites + n_sites * (n_sites + 1) // 2
    return per_release + streams * word_variation_bound(MAX_BLOCK_WORDS)


def _check_participants(contract: Contract, participants: tuple[str, ...], invited: tuple[str, ...]) -> None:
    if strangers := set(participants) - set(invited):
        raise InputError(f"{', '.join(sorted(strangers))} made no masks and cannot take part in the release")
    if contract.mechanism == "cape" and len(participants) <= contract.roster.n_colluding:
        raise InputError(
            f"{len(participants)} participants cannot hide behind each other when "
            f"{contract.roster.n_colluding} sites may collude"
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
        # What a site sends is at most so long for each of its subjects.
        self.longest = max(
            query.largest(name) * scale for name, scale in zip(participants, self.scale.tolist(), strict=True)
        )

    def plan(self, fraction: float) -> ReleasePlan:
        targets = np.array([self.contract.total_mu[name] for name in self.participants])
        targets *= math.sqrt(fraction) * (1 - HEADROOM)
        noise, curator = self._noise(targets)
        step = self._step(noise, curator)
        # The sqrt(d) of rounding in (1): a little more noise keeps mu where it was.
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
        """How far one subject moves the sum, before rounding."""
        return self.sensitivity * self.scale

    def _shift(self, step: float) -> FloatArray:
        """Delta_s of equation (1), in grid steps."""
        return self._shift_of_reals() / step + math.sqrt(self.query.size)

    def _noise(self, targets: FloatArray) -> tuple[FloatArray, float]:
        """Noise of each site and of the curator on the sum, before rounding is allowed for."""
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
        """Refuse what the grid, the sampler or the ring cannot hold: equation (2), from public values."""
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
            f"'{self.query.label}': the noise asked for is too {problem} for exact integer arithmetic "
            f"with {self.n_subjects} subjects and clip {self.query.clip:g}; ask for a {remedy} epsilon"
        )

    def _mask(self, noise: FloatArray, fraction: float) -> FloatArray:
        """Scale of the masks; the paper's are sqrt(S) times the noise as planned for those invited."""
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
        """Scale the local noise until, with these Gaussian masks, every site is within its target."""

        def excess(log_factor: float) -> float:
            mu = self._mu(noise * math.exp(log_factor), mask, 0.0, step)
            return float(np.max(mu / targets)) - 1

        # Wide enough for any noise that the grid holds; what is beyond is refused there.
        low, high = -40.0, 40.0
        if excess(low) <= 0:
            return noise * math.exp(low)
        return noise * math.exp(float(brentq(excess, low, high, xtol=1e-12)) + HEADROOM)

    def _mu(self, noise: FloatArray, mask: FloatArray, curator: float, step: float) -> FloatArray:
        """Exact mu of each participant, from the integers that will be sent."""
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
        """Bound what the grid adds to delta by :func:`capedjica.securesum.discrete_gaussian.grid_delta`.

        With Gaussian masks the view is a message of each honest site and then the sum of their masks, each a
        discrete Gaussian given what came before; the one with the least noise has scale sqrt(r) n_s. Each
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
    """Weights of the participants: as agreed, or by size; rescaled to add up to 1."""
    given = contract.weights or contract.subjects
    by_name = dict(zip(contract.roster.names, given, strict=True))
    weights = np.array([by_name[name] for name in participants], dtype=np.float64)
    normalised: FloatArray = weights / weights.sum()
    return normalised
