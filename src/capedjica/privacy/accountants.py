r"""Composition of many releases: five accountants with one interface.

Every release is described by its mu (:mod:`capedjica.privacy.gaussian`), so exact composition is one
line: :math:`\mu^2 = \sum_i \mu_i^2`. With a cap that is checked before each release this also holds when the
costs themselves are chosen adaptively: it is a privacy filter (Smith and Thakurta 2022;
docs/concepts/privacy.md, section 2). The other accountants are upper bounds for costs that are fixed in
advance; they are included because the paper plots them. Composition is transactional: a release that would
exceed the cap is refused before any state changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from capedjica.errors import BudgetExceededError, InputError
from capedjica.privacy import validate
from capedjica.privacy.gaussian import gaussian_epsilon


@dataclass(frozen=True)
class Release:
    """One kind of release: the shift of the adversary's view, mu, and the number of repetitions."""

    mu: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", validate.nonnegative("mu", self.mu))
        object.__setattr__(self, "count", validate.count("count", self.count))


class Accountant(ABC):
    """Compose releases and compute their total epsilon at one delta.

    Parameters
    ----------
    delta : float
        The delta of the total guarantee.
    max_epsilon : float, optional
        The cap: :meth:`compose` refuses releases that would exceed it.

    Examples
    --------
    >>> accountant = ExactAccountant(delta=1e-5, max_epsilon=2.0)
    >>> accountant.compose(Release(mu=0.3, label="subspace"))
    >>> accountant.compose(Release(mu=0.05, count=30, label="gradient"))
    >>> round(accountant.epsilon, 4)
    1.5817
    """

    name: ClassVar[str]

    def __init__(self, delta: float, max_epsilon: float = math.inf) -> None:
        self.delta = validate.probability("delta", delta)
        self.max_epsilon = validate.nonnegative("max_epsilon", max_epsilon)
        self._releases: list[Release] = []

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases composed so far, in order."""
        return tuple(self._releases)

    @property
    def epsilon(self) -> float:
        """Total epsilon of the releases composed so far."""
        return self._total(_tally(self._releases))

    def epsilon_with(self, *releases: Release) -> float:
        """Return the total epsilon if ``releases`` were added; changes nothing."""
        return self._total(_tally([*self._releases, *releases]))

    def compose(self, *releases: Release) -> None:
        """Add ``releases`` to the account: all of them, or none if they would exceed the cap.

        Raises
        ------
        BudgetExceededError
            If the total would exceed ``max_epsilon``.
        """
        total = self.epsilon_with(*releases)
        if total > self.max_epsilon:
            raise BudgetExceededError(
                f"these releases would raise the total epsilon to {total:.6g} at delta {self.delta:g}, "
                f"above the cap of {self.max_epsilon:g} ({self.epsilon:.6g} already spent); they were refused"
            )
        self._releases.extend(releases)

    def _total(self, tally: Mapping[float, int]) -> float:
        """Return the epsilon of ``tally``, which maps mu to the number of releases with that mu."""
        if not tally:
            return 0.0
        if math.inf in tally:
            return math.inf
        return self._compose(tally)

    @abstractmethod
    def _compose(self, tally: Mapping[float, int]) -> float:
        """Return the epsilon of a non-empty tally of finite, positive mu."""


class ExactAccountant(Accountant):
    """Exact epsilon of Gaussian releases: mu^2 adds up. Used for every epsilon shown to a user."""

    name = "exact"

    def _compose(self, tally: Mapping[float, int]) -> float:
        return gaussian_epsilon(_total_mu(tally), self.delta)


class RdpAccountant(Accountant):
    r"""Renyi differential privacy at the optimal order (Mironov 2017, Propositions 1, 3 and 7).

    With :math:`\mu^2 = \sum\mu_i^2`, order alpha costs :math:`\alpha\mu^2/2`; converting to
    (epsilon, delta) adds :math:`\log(1/\delta)/(\alpha - 1)`; the best order is
    :math:`\alpha = 1 + \sqrt{2 \log(1/\delta)} / \mu`, which gives
    :math:`\epsilon = \mu^2/2 + \mu\sqrt{2 \log(1/\delta)}`, an upper bound on the exact epsilon.
    """

    name = "rdp"

    def _compose(self, tally: Mapping[float, int]) -> float:
        mu = _total_mu(tally)
        return mu * (mu / 2 + math.sqrt(-2 * math.log(self.delta)))


class MomentsAccountant(RdpAccountant):
    r"""The moments accountant (Abadi et al. 2016, Theorem 2) without subsampling.

    :math:`\delta = \min_t \exp(\alpha(t) - t\epsilon)` with
    :math:`\alpha(t) = \tfrac12 \sum\mu_i^2 (t + t^2)`. The minimum is at
    :math:`t = \epsilon / \sum\mu_i^2 - 1/2`, which gives the quadratic
    :math:`\epsilon^2/(2A) - \epsilon/2 + A/8 + \log\delta = 0`, :math:`A = \sum\mu_i^2`. Its larger root,
    :math:`A/2 + \sqrt{2 A \log(1/\delta)}`, is the bound of :class:`RdpAccountant`, with t = alpha - 1.
    """

    name = "moments"


class StrongAccountant(Accountant):
    r"""Strong composition (Dwork, Rothblum and Vadhan 2010, Theorem III.3), also of unequal releases.

    Half of delta is split equally among the releases, each converted exactly to (epsilon_i, delta_i);
    the other half is the slack: :math:`\epsilon = \sqrt{2 \log(2/\delta) \sum\epsilon_i^2} + \sum \epsilon_i
    (e^{\epsilon_i} - 1)`. (Kairouz, Oh and Viswanath 2015, Theorem 3.5, imply the unequal case.)
    """

    name = "strong"

    def _compose(self, tally: Mapping[float, int]) -> float:
        each = _epsilons(tally, self.delta / 2)
        spread = math.hypot(*(e * math.sqrt(k) for e, k in each))
        drift = sum(k * e * (math.expm1(e) if e < 700 else math.inf) for e, k in each)
        return math.sqrt(2 * (math.log(2) - math.log(self.delta))) * spread + drift


class NaiveAccountant(Accountant):
    """Naive composition: delta is split evenly and the exact epsilons of the releases are added up."""

    name = "naive"

    def _compose(self, tally: Mapping[float, int]) -> float:
        return sum(k * e for e, k in _epsilons(tally, self.delta))


ACCOUNTANTS: dict[str, type[Accountant]] = {
    cls.name: cls
    for cls in (ExactAccountant, RdpAccountant, MomentsAccountant, StrongAccountant, NaiveAccountant)
}


def accountant(name: str, delta: float, max_epsilon: float = math.inf) -> Accountant:
    """Return a new accountant with the given name: exact, rdp, moments, strong or naive."""
    if name not in ACCOUNTANTS:
        raise InputError(f"accountant must be one of {', '.join(ACCOUNTANTS)}; got {name!r}")
    return ACCOUNTANTS[name](delta, max_epsilon)


def _tally(releases: list[Release]) -> Counter[float]:
    tally: Counter[float] = Counter()
    for release in releases:
        if release.mu > 0:
            tally[release.mu] += release.count
    return tally


def _total_mu(tally: Mapping[float, int]) -> float:
    return math.hypot(*(mu * math.sqrt(k) for mu, k in tally.items()))


def _epsilons(tally: Mapping[float, int], delta: float) -> list[tuple[float, int]]:
    """Return the exact (epsilon_i, count) of each kind of release when delta is split evenly."""
    share = delta / sum(tally.values())
    return [(gaussian_epsilon(mu, share), k) for mu, k in tally.items()]
