"""What a result cost, in numbers for programs and in words for people."""

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
    """What one release costs.

    Attributes
    ----------
    label : str
        What was released.
    site_mu : dict
        Its exact cost to one protected unit of each site that was asked.
    noise : float
        Standard deviation of the noise on each number.
    aborted : bool
        Sent, then given up because a site was lost; it counts all the same.
    pure_epsilon : float
        Of Laplace noise: its epsilon at delta 0, of which ``site_mu`` is an upper bound
        (:func:`capedjica.privacy.pure_mu`); 0 for Gaussian noise.
    """

    label: str
    site_mu: Mapping[str, float]
    noise: float
    aborted: bool = False
    pure_epsilon: float = 0.0

    @property
    def mu(self) -> float:
        """The largest cost over the sites."""
        return max(self.site_mu.values(), default=0.0)


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a result.

    What is *nominal* is what the noise would have cost from a secure source. It is the guarantee as well,
    under the name without that word, unless nobody is protected because noise came from a seed: then every
    such number is infinite.

    Parameters
    ----------
    nominal_epsilon : float
        The cap fixed before the run, for all releases together. Stopping early depends on data, so what was
        spent by then (``spent_epsilon``) is shown beside it, never instead of it.
    delta : float
        The delta that belongs to it.
    nominal_mu : float
        The same cap as a shift of the adversary's view in standard deviations.
    nominal_releases : tuple of Charge
        Everything that was released, in order.
    nominal_site_epsilon : dict
        The cap of each site; ``nominal_epsilon`` is the largest.
    mechanism : str
        How means were made private.
    n_sites, n_colluding : int
        The sites of the study, and how many of them may side with the aggregator.
    secure : bool
        False if the noise came from a seed: then nothing here is a guarantee.
    nominal_charged : dict, optional
        mu^2 by site as the sites' own ledgers say. They also know of releases that were lost, because a
        party was interrupted between sending and keeping the result.
    neighbour : {"subject", "sample"}
        What is protected: all the data of a subject, or a single time point.
    units_per_subject : int
        How many of these one subject may hold.
    alone : str
        The site that worked alone under ``mechanism="local"``.
    not_covered : tuple of str
        Sentences on what the guarantee does not cover.
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
        """What is guaranteed, with its words."""
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
        """Whether anybody is protected: not without noise, and not with noise from a seed."""
        return self.guarantee.private

    @property
    def epsilon(self) -> float:
        """The guarantee for one protected unit; infinite if nobody is protected."""
        return self.guarantee.epsilon

    @property
    def mu(self) -> float:
        """The same as a shift of the adversary's view in standard deviations."""
        return self.guarantee.mu

    @property
    def site_epsilon(self) -> Mapping[str, float]:
        """The guarantee of each site; ``epsilon`` is the largest."""
        return {name: self._true(epsilon) for name, epsilon in self.nominal_site_epsilon.items()}

    @cached_property
    def releases(self) -> tuple[Charge, ...]:
        """Everything that was released, in order, with what it cost."""
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
        """mu^2 by site as the sites' own ledgers say, if they were asked."""
        given = self.nominal_charged
        return None if given is None else {name: self._true(mu2) for name, mu2 in given.items()}

    def _true(self, nominal: float) -> float:
        return nominal if self.private else math.inf

    @property
    def unit(self) -> ProtectedUnit:
        """What is protected."""
        return ProtectedUnit(self.neighbour, self.units_per_subject)

    @property
    def subject_mu(self) -> float:
        """The mu of a whole subject: that of as many units as a subject may hold."""
        return self.guarantee.person_mu

    @property
    def subject_epsilon(self) -> float:
        """The epsilon of a whole subject (:mod:`capedjica.privacy.neighbour`); ``epsilon`` if that is it."""
        return self.guarantee.person_epsilon

    @property
    def adversary(self) -> Adversary:
        """Against whom the guarantee holds, and against whom it does not."""
        return self.guarantee.adversary

    @property
    def curious_site_epsilon(self) -> float | None:
        """Epsilon against one curious site, where the guarantee covers none; else None."""
        return self.guarantee.curious_site_epsilon

    @property
    def lost(self) -> tuple[str, ...]:
        """The sites of the study that were not among those of the last release."""
        if not self.nominal_releases or self.mechanism == "local":
            return ()
        return tuple(
            name for name in self.nominal_site_epsilon if name not in self.nominal_releases[-1].site_mu
        )

    @property
    def spent_mu(self) -> float:
        """The mu of everything that was released so far, for the site that gave most."""
        return self._true(self._nominal_spent_mu)

    @property
    def _nominal_spent_mu(self) -> float:
        charged = max(self.nominal_charged.values(), default=0.0) if self.nominal_charged else 0.0
        return max(_mu_of(self.nominal_releases), math.sqrt(charged))

    @property
    def spent_epsilon(self) -> float:
        """The epsilon of what was released so far; for information, not the guarantee."""
        return self._true(self.nominal_spent_epsilon)

    @property
    def nominal_spent_epsilon(self) -> float:
        """What the releases so far would have cost had their noise come from a secure source.

        With Laplace noise among them the smaller of two upper bounds: all of them as Gaussian ones, or the
        Gaussian ones and then, by basic composition, the epsilons of the others.
        """
        as_gaussian = gaussian_epsilon(self._nominal_spent_mu, self.delta)
        if not any(one.pure_epsilon for one in self.nominal_releases):
            return as_gaussian
        return min(as_gaussian, _epsilon_of(self.nominal_releases, self.delta))

    def epsilon_of(self, *labels: str) -> float:
        """Epsilon of the releases with these labels alone; for comparison with other accounts."""
        chosen = [release for release in self.nominal_releases if release.label in labels]
        return self._true(_epsilon_of(chosen, self.delta))

    def __str__(self) -> str:
        said = self.guarantee
        shift = [said.shift] if said.private else []
        return "\n".join([*said.summary, *shift, *self._lines(), *said.caveats])

    def _lines(self) -> list[str]:
        counts = Counter((release.label, release.aborted) for release in self.releases)
        lines = [
            f"  {count} x {label}" + (" (given up when a site was lost; charged)" if aborted else "")
            for (label, aborted), count in counts.items()
        ]
        known = _mu_of(self.releases)
        if known * (1 + 1e-6) < self.spent_mu < math.inf:
            lost = gaussian_epsilon(math.sqrt(self.spent_mu**2 - known**2), self.delta)
            lines.append(f"  Lost to interruptions, and charged all the same: epsilon {round_up(lost)}.")
        if self.lost:
            lines.append(f"  Sites lost on the way: {', '.join(self.lost)}; all they were asked for counts.")
        if 0 < self.spent_mu < math.inf:
            lines.append(
                f"  Spent by the end: epsilon {round_up(self.spent_epsilon)} "
                f"of the {round_up(self.epsilon, 6)} allowed."
            )
        return lines


def _epsilon_of(releases: Sequence[Charge], delta: float) -> float:
    """Return the lesser of two upper bounds: all as Gaussian ones, or the pure ones added to the others."""
    pure = math.fsum(one.pure_epsilon for one in releases)
    others = _mu_of(one for one in releases if not one.pure_epsilon)
    return min(gaussian_epsilon(_mu_of(releases), delta), gaussian_epsilon(others, delta) + pure)


def _mu_of(releases: Iterable[Charge]) -> float:
    """Return the mu of releases together, for the site that gave most."""
    spent: dict[str, list[float]] = defaultdict(list)
    for release in releases:
        for site, mu in release.site_mu.items():
            spent[site].append(mu)
    return max((math.hypot(*mus) for mus in spent.values()), default=0.0)
