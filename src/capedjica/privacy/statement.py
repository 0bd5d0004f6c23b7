"""What a result cost, in numbers for programs and in words for people."""

from __future__ import annotations

import decimal
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.privacy.reserve import STREAM_EPSILON, difference

_AGAINST = {
    "cape": "an aggregator that sees every message, together with any {n_colluding} of the {n_sites} sites",
    "conventional": "an aggregator that sees every message, together with all other sites",
    "local": "anyone who sees the result of the one site that was used",
    "pooled": "anyone who sees the result, but NOT the curator: it held all data and is trusted",
    "none": "nobody",
}


def round_up(value: float | None, digits: int = 4) -> str:
    """Return a guarantee to ``digits`` significant digits, never below its value; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(decimal.Decimal(value))):.{digits}g}"


@dataclass(frozen=True)
class Charge:
    """One release.

    Attributes
    ----------
    label : str
        What was released.
    site_mu : dict
        Its exact cost to one subject of each site that was asked.
    noise : float
        Standard deviation of the noise on each number.
    aborted : bool
        Sent, then given up because a site was lost; it counts all the same.
    """

    label: str
    site_mu: Mapping[str, float]
    noise: float
    aborted: bool = False

    @property
    def mu(self) -> float:
        """The largest cost over the sites."""
        return max(self.site_mu.values(), default=0.0)


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a result.

    Attributes
    ----------
    epsilon : float
        The guarantee: the cap fixed before the run, for all releases together. Stopping early depends on
        data, so what was spent by then (``spent_epsilon``) is shown beside it, never instead of it.
    delta : float
        The delta that belongs to it.
    mu : float
        The same cap as a shift of the adversary's view in standard deviations.
    releases : tuple of Charge
        Everything that was released, in order.
    site_epsilon : dict
        The cap of each site; ``epsilon`` is the largest.
    mechanism : str
        How means were made private.
    n_sites, n_colluding : int
        The sites of the study, and how many of them may side with the aggregator.
    secure : bool
        False if the noise came from a seed: then nothing here is a guarantee.
    charged : dict, optional
        mu^2 by site as the sites' own ledgers say. They also know of releases that were lost, because a
        party was interrupted between sending and keeping the result.
    """

    epsilon: float
    delta: float
    mu: float
    releases: tuple[Charge, ...]
    site_epsilon: Mapping[str, float]
    mechanism: str
    n_sites: int
    n_colluding: int
    secure: bool = True
    charged: Mapping[str, float] | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """The sites of the study that were not among those of the last release."""
        if not self.releases or self.mechanism == "local":
            return ()
        return tuple(name for name in self.site_epsilon if name not in self.releases[-1].site_mu)

    @property
    def spent_mu(self) -> float:
        """The mu of everything that was released so far, for the site that gave most."""
        charged = max(self.charged.values(), default=0.0) if self.charged else 0.0
        return max(self._mu_of(self.releases), math.sqrt(charged))

    @property
    def spent_epsilon(self) -> float:
        """The epsilon of what was released so far; for information, not the guarantee."""
        return gaussian_epsilon(self.spent_mu, self.delta)

    def epsilon_of(self, *labels: str) -> float:
        """Epsilon of the releases with these labels alone; for comparison with other accounts."""
        return gaussian_epsilon(self._mu_of([r for r in self.releases if r.label in labels]), self.delta)

    def _mu_of(self, releases: Iterable[Charge]) -> float:
        spent: dict[str, list[float]] = defaultdict(list)
        for release in releases:
            for site, mu in release.site_mu.items():
                spent[site].append(mu)
        return max((math.hypot(*mus) for mus in spent.values()), default=0.0)

    def __str__(self) -> str:
        return "\n".join([*self._headline(), *self._lines()])

    def _headline(self) -> list[str]:
        if not self.secure:
            return [
                "NOT PRIVATE: the noise came from a seed (insecure_noise_seed), so it can be taken off again."
            ]
        if self.epsilon == math.inf:
            return ["NOT PRIVATE: no noise was added."]
        against = _AGAINST[self.mechanism].format(n_colluding=self.n_colluding, n_sites=self.n_sites)
        return [
            f"Each subject is protected with epsilon = {round_up(self.epsilon, 6)}, delta = {self.delta:g}",
            f"(mu = {round_up(self.mu)}) against {against}.",
        ]

    def _lines(self) -> list[str]:
        counts = Counter((release.label, release.aborted) for release in self.releases)
        lines = [
            f"  {count} x {label}" + (" (given up when a site was lost; charged)" if aborted else "")
            for (label, aborted), count in counts.items()
        ]
        if self.secure and STREAM_EPSILON < self.epsilon < math.inf:
            lines.append(
                "  At so large an epsilon this is said of ideal random numbers; those that were drawn are as "
                f"good except with probability {round_up(difference(self.delta), 2)}."
            )
        known = self._mu_of(self.releases)
        if known * (1 + 1e-6) < self.spent_mu < math.inf:
            lost = gaussian_epsilon(math.sqrt(self.spent_mu**2 - known**2), self.delta)
            lines.append(f"  Lost to interruptions, and charged all the same: epsilon = {round_up(lost)}.")
        if self.lost:
            lines.append(f"  Sites lost on the way: {', '.join(self.lost)}; all they were asked for counts.")
        if 0 < self.spent_mu < math.inf:
            lines.append(
                f"  Spent by the end: epsilon = {round_up(self.spent_epsilon)} "
                f"of the {round_up(self.epsilon, 6)} allowed."
            )
        return lines
