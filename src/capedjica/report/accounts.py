r"""Privacy cost of a run as shown in the report: by site, by accountant, and by the paper's formulas."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from capedjica.mechanisms.contract import Contract
from capedjica.privacy import ACCOUNTANTS, Release, accountant, gaussian_epsilon, paper
from capedjica.privacy.statement import Charge, PrivacyStatement

NAMES: Final = {
    "exact": "exact (Gaussian differential privacy)",
    "rdp": "Rényi, best order",
    "moments": "moments accountant",
    "strong": "strong composition",
    "naive": "naive composition",
}
PAPER_NAMES: Final = {
    "output": "published output only, by the paper's Rényi accounting (corrected)",
    "theorem_1": "the paper's Theorem 1",
    "paper_masks": "the paper's masks, accounted for exactly",
}


# By accountant


def side_by_side(privacy: PrivacyStatement) -> dict[str, float]:
    """Return the epsilon of all releases by each accountant, for the site with the highest cost."""
    spent: dict[str, list[float]] = {}
    for release in privacy.releases:
        for site, mu in release.site_mu.items():
            spent.setdefault(site, []).append(mu)
    mus: list[float] = max(spent.values(), key=lambda mus: math.hypot(*mus), default=[])
    totals = {}
    for name in ACCOUNTANTS:
        book = accountant(name, privacy.delta)
        book.compose(*(Release(mu, count) for mu, count in Counter(mus).items()))
        totals[name] = book.epsilon
    return totals


def by_the_paper(contract: Contract, privacy: PrivacyStatement) -> dict[str, float]:
    r"""Return epsilon by the paper's formulas for the same noise and means; empty where they do not apply.

    Let sigma be the noise of a mean over M subjects in units of its sensitivity, spread C/M. Then, for S
    sites of which S_C collude, mu^2 of a release is

    ============  =====================================================================
    output        1/sigma^2: the published mean only, without what the aggregator sees
    theorem_1     2 mu_z, equation (1) of the paper, in its units tau = sigma, N = S
    paper_masks   S/(S+1) (1 + S/S_H)/sigma^2: the paper's masks, accounted for exactly
    ============  =====================================================================

    All three use exact composition, so the comparison is between views and not between accountants. With
    masks uniform on the ring, mu^2 is S/(S_H sigma^2), which :func:`side_by_side` uses.
    """
    n, c = len(contract.subjects), contract.roster.n_colluding
    if contract.mechanism != "cape" or not privacy.releases or not math.isfinite(privacy.mu):
        return {}
    if any(release.pure_epsilon for release in privacy.releases):
        return {}
    inverse = math.fsum(_ratio(contract, release) ** -2 for release in privacy.releases)
    squares = {"output": inverse, "paper_masks": n / (n + 1) * (1 + n / (n - c)) * inverse}
    if c <= paper.theorem_1_most_colluding(n):
        squares["theorem_1"] = 2 * paper.cape_mu_z(1.0, n, n, c) * inverse
    return {
        name: gaussian_epsilon(math.sqrt(squares[name]), privacy.delta)
        for name in PAPER_NAMES
        if name in squares
    }


def _ratio(contract: Contract, release: Charge) -> float:
    """Return the noise of a release in units of its sensitivity."""
    query = next(stage.query for stage in contract.stages if stage.query.label == release.label)
    people = sum(contract.enrolled[site] for site in release.site_mu)
    return release.noise * people / query.sensitivity()


# By site


@dataclass(frozen=True)
class SiteRow:
    """Public facts about one site, none of which depends on its scans.

    Attributes
    ----------
    name, people : str, int
        Its name and the number of participants enrolled.
    cap, spent : float
        The limit on epsilon, and the total in its ledger.
    releases, numbers : int
        The number of sums sent, and of numbers in them in total.
    """

    name: str
    people: int
    cap: float
    spent: float
    releases: int
    numbers: int

    @property
    def kilobytes(self) -> float:
        """Size of the numbers sent, at 8 bytes each."""
        return self.numbers * 8 / 1000


def site_rows(contract: Contract, privacy: PrivacyStatement) -> list[SiteRow]:
    """Return one row per site."""
    sizes = {stage.query.label: stage.query.size for stage in contract.stages}
    rows = []
    for name, people in contract.enrolled.items():
        sent = [release for release in privacy.releases if name in release.site_mu]
        spent = math.hypot(*(release.site_mu[name] for release in sent)) if sent else 0.0
        charged = math.sqrt((privacy.charged or {}).get(name, 0.0))
        rows.append(
            SiteRow(
                name,
                people,
                privacy.site_epsilon.get(name, math.inf),
                # For Laplace noise mu is an upper bound, and the statement may have a tighter one.
                min(gaussian_epsilon(max(spent, charged), privacy.delta), privacy.spent_epsilon),
                len(sent),
                sum(sizes.get(release.label, 0) for release in sent),
            )
        )
    return rows


@dataclass(frozen=True)
class ReleaseRow:
    """One kind of release: how often it was made, its size, and its total cost."""

    label: str
    times: int
    given_up: int
    numbers: int
    noise: float
    epsilon: float


def release_rows(contract: Contract, privacy: PrivacyStatement) -> list[ReleaseRow]:
    """Return one row per kind of release, in order of first release."""
    sizes = {stage.query.label: stage.query.size for stage in contract.stages}
    rows = []
    for label in dict.fromkeys(release.label for release in privacy.releases):
        made = [release for release in privacy.releases if release.label == label]
        rows.append(
            ReleaseRow(
                label,
                len(made),
                sum(release.aborted for release in made),
                sizes.get(label, 0),
                made[-1].noise,
                privacy.epsilon_of(label),
            )
        )
    return rows
