"""The privacy statement of a result: its guarantee and cost, as numbers and as text."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from capedjica.privacy.adversary import Adversary
from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.privacy.neighbour import Neighbour, ProtectedUnit
from capedjica.privacy.wording import Guarantee, round_up


@dataclass(frozen=True)
class Charge:
    """The cost of one release.

    Attributes
    ----------
    label : str
        The name of the release.
    site_mu : dict
        Its exact cost to one protected unit of each site that was asked.
    noise : float
        Standard deviation of the noise on each value.
    aborted : bool
        Whether it was sent and then aborted because a site was lost; it is charged nevertheless.
    pure_epsilon : float
        For Laplace noise, the epsilon at delta 0, from which ``site_mu`` is derived as an upper bound
        (:func:`capedjica.privacy.pure_mu`); 0 for Gaussian noise.
    """

    label: str
    site_mu: Mapping[str, float]
    noise: float
    aborted: bool = False
    pure_epsilon: float = 0.0

    @property
    def mu(self) -> float:
        """The largest cost over all sites."""
        return max(self.site_mu.values(), default=0.0)


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a result.

    *Nominal* values are those of noise from a secure source. The attribute without that prefix is the actual
    guarantee. It has the same value, unless the noise came from a seed: then there is no privacy and every
    such value is infinite.

    Parameters
    ----------
    nominal_epsilon : float
        The cap fixed before the run, for all releases in total. Early stopping depends on the data, so the
        amount actually spent (``spent_epsilon``) is shown next to it, never instead of it.
    delta : float
        The delta of the guarantee.
    nominal_mu : float
        The same cap as a shift of the adversary's view in standard deviations.
    nominal_releases : tuple of Charge
        All releases, in order.
    nominal_site_epsilon : dict
        The cap of each site; ``nominal_epsilon`` is the largest.
    mechanism : str
        The privacy mechanism.
    n_sites, n_colluding : int
        Number of sites of the study, and how many of them may collude with the aggregator.
    secure : bool
        False if the noise came from a seed; there is then no guarantee.
    nominal_charged : dict, optional
        mu^2 of each site according to its own ledger. The ledgers also contain releases that were lost
        because a party was interrupted after sending and before storing the result.
    neighbour : {"subject", "sample"}
        The unit of privacy: all data of a subject, or a single time point.
    units_per_subject : int
        Largest number of units that one subject holds.
    alone : str
        The only site used by ``mechanism="local"``.
    not_covered : tuple of str
        Sentences that state what the guarantee does not cover.
    """

    nominal_epsilon: float
    delta: float
    nominal_mu: float
    nominal_releases: tuple[Charge, ...]
    nominal_site_epsilon: Mapping[str, float]
    mechanism: str
    n_sites: int
    n_colluding: int
    secure: bool = True
    nominal_charged: Mapping[str, float] | None = None
    neighbour: Neighbour = "subject"
    units_per_subject: int = 1
    alone: str = ""
    not_covered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ProtectedUnit(self.neighbour, self.units_per_subject)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee, with its description in words."""
        return Guarantee(
            nominal_epsilon=self.nominal_epsilon,
            delta=self.delta,
            nominal_mu=self.nominal_mu,
            mechanism=self.mechanism,
            n_sites=self.n_sites,
            n_colluding=self.n_colluding,
            unit=self.unit,
            secure=self.secure,
            alone=self.alone,
            fewest_sites=min((len(one.site_mu) for one in self.nominal_releases), default=None),
            not_covered=self.not_covered,
        )

    @property
    def private(self) -> bool:
        """Whether there is a guarantee: False without noise and with noise from a seed."""
        return self.guarantee.private

    @property
    def epsilon(self) -> float:
        """The epsilon of one protected unit; infinite if there is no guarantee."""
        return self.guarantee.epsilon

    @property
    def mu(self) -> float:
        """The guarantee as a shift of the adversary's view in standard deviations."""
        return self.guarantee.mu

    @property
    def site_epsilon(self) -> Mapping[str, float]:
        """The epsilon of each site; ``epsilon`` is the largest."""
        return {name: self._true(epsilon) for name, epsilon in self.nominal_site_epsilon.items()}

    @cached_property
    def releases(self) -> tuple[Charge, ...]:
        """All releases with their cost, in order."""
        return tuple(
            replace(
                one,
                site_mu={name: self._true(mu) for name, mu in one.site_mu.items()},
                pure_epsilon=self._true(one.pure_epsilon) if one.pure_epsilon else 0.0,
            )
            for one in self.nominal_releases
        )

    @property
    def charged(self) -> Mapping[str, float] | None:
        """mu^2 of each site according to its own ledger; None if the ledgers were not queried."""
        given = self.nominal_charged
        return None if given is None else {name: self._true(mu2) for name, mu2 in given.items()}

    def _true(self, nominal: float) -> float:
        return nominal if self.private else math.inf

    @property
    def unit(self) -> ProtectedUnit:
        """The unit of privacy."""
        return ProtectedUnit(self.neighbour, self.units_per_subject)

    @property
    def subject_mu(self) -> float:
        """The mu of a whole subject with the largest number of units."""
        return self.guarantee.person_mu

    @property
    def subject_epsilon(self) -> float:
        """The epsilon of a whole subject (:mod:`capedjica.privacy.neighbour`)."""
        return self.guarantee.person_epsilon

    @property
    def adversary(self) -> Adversary:
        """The adversaries that the guarantee covers and those that it does not."""
        return self.guarantee.adversary

    @property
    def curious_site_epsilon(self) -> float | None:
        """Epsilon against one curious site if the guarantee covers no other site, else None."""
        return self.guarantee.curious_site_epsilon

    @property
    def lost(self) -> tuple[str, ...]:
        """The sites of the study that did not take part in the last release."""
        if not self.nominal_releases or self.mechanism == "local":
            return ()
        return tuple(
            name for name in self.nominal_site_epsilon if name not in self.nominal_releases[-1].site_mu
        )

    @property
    def absent(self) -> tuple[str, ...]:
        """The sites of the study that took part in no completed release: no result includes their data."""
        completed = [one.site_mu for one in self.nominal_releases if not one.aborted]
        if not completed or self.mechanism == "local":
            return ()
        return tuple(name for name in self.nominal_site_epsilon if not any(name in one for one in completed))

    @property
    def spent_mu(self) -> float:
        """Total mu of all releases so far, for the site with the largest cost."""
        return self._true(self._nominal_spent_mu)

    @property
    def _nominal_spent_mu(self) -> float:
        charged = max(self.nominal_charged.values(), default=0.0) if self.nominal_charged else 0.0
        return max(_mu_of(self.nominal_releases), math.sqrt(charged))

    @property
    def spent_epsilon(self) -> float:
        """Epsilon of the releases so far; for information only, it is not the guarantee."""
        return self._true(self.nominal_spent_epsilon)

    @property
    def nominal_spent_epsilon(self) -> float:
        """Epsilon of the releases so far if their noise had come from a secure source.

        If some of them have Laplace noise, this is the smaller of two upper bounds: all composed as Gaussian
        releases, or the Gaussian releases plus, by basic composition, the epsilons of the others.
        """
        as_gaussian = gaussian_epsilon(self._nominal_spent_mu, self.delta)
        if not any(one.pure_epsilon for one in self.nominal_releases):
            return as_gaussian
        return min(as_gaussian, _epsilon_of(self.nominal_releases, self.delta))

    def epsilon_of(self, *labels: str) -> float:
        """Return the epsilon of the releases with these labels only, for comparison with other accounts."""
        chosen = [release for release in self.nominal_releases if release.label in labels]
        return self._true(_epsilon_of(chosen, self.delta))

    def __str__(self) -> str:
        said = self.guarantee
        shift = [said.shift] if said.private else []
        return "\n".join([*said.summary, *shift, *self._lines(), *said.caveats])

    def _lines(self) -> list[str]:
        counts = Counter((release.label, release.aborted) for release in self.releases)
        lines = [
            f"  {count} x {label}" + (" (aborted when a site was lost; still charged)" if aborted else "")
            for (label, aborted), count in counts.items()
        ]
        known = _mu_of(self.releases)
        if known * (1 + 1e-6) < self.spent_mu < math.inf:
            lost = gaussian_epsilon(math.sqrt(self.spent_mu**2 - known**2), self.delta)
            lines.append(f"  Lost to interruptions, but still charged: epsilon {round_up(lost)}.")
        if self.absent:
            lines.append(f"  Sites that took no part and are in no result: {', '.join(self.absent)}.")
        gone = ", ".join(name for name in self.lost if name not in self.absent)
        if gone:
            lines.append(f"  Sites lost during the run: {gone}; every release requested of them is charged.")
        if 0 < self.spent_mu < math.inf:
            lines.append(
                f"  Spent in total: epsilon {round_up(self.spent_epsilon)} "
                f"of the {round_up(self.epsilon, 6)} allowed."
            )
        return lines


def _epsilon_of(releases: Sequence[Charge], delta: float) -> float:
    """Return the smaller of two upper bounds: all as Gaussian releases, or pure epsilons added separately."""
    pure = math.fsum(one.pure_epsilon for one in releases)
    others = _mu_of(one for one in releases if not one.pure_epsilon)
    return min(gaussian_epsilon(_mu_of(releases), delta), gaussian_epsilon(others, delta) + pure)


def _mu_of(releases: Iterable[Charge]) -> float:
    """Return the total mu of releases, for the site with the largest cost."""
    spent: dict[str, list[float]] = defaultdict(list)
    for release in releases:
        for site, mu in release.site_mu.items():
            spent[site].append(mu)
    return max((math.hypot(*mus) for mus in spent.values()), default=0.0)
