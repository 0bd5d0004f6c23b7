r"""The ledger's rule is a privacy filter: no adaptive choice of what each release costs beats the cap.

The adversary sees the log-likelihood ratio L of everything so far and picks the next release's mu^2, in
quarters of the cap, as it pleases and as often as the rule lets it. A release of mu^2 = f moves L by
f/2 + sqrt(f) z under D, z a standard Gaussian, and in the end delta(epsilon) = E[(1 - e^(epsilon - L))+]. The
best of all such adversaries is found by dynamic programming, so no strategy is left out; the only errors are
those of the trapezoidal rule and of linear interpolation, together below 2e-5 (checked against the closed
formula, where the adversary takes all at once).
"""

import math
from functools import cache

import numpy as np
import pytest

from capedjica.errors import BudgetExceededError
from capedjica.privacy import gaussian_delta
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Policy

PARTS = 4
CAP = Cap(1.0, 0.05)
POLICY = Policy(total=CAP, per_study=CAP)
ERROR = 2e-5

Z = np.linspace(-8, 8, 801)
WEIGHTS = np.exp(-(Z**2) / 2) / math.sqrt(2 * math.pi) * (Z[1] - Z[0])
L = np.linspace(-12, 12, 4801)


def cost(parts):
    return parts * CAP.mu2 / PARTS


def ledger_allows(spent, parts):
    """The rule that a ledger goes by."""
    try:
        POLICY.check(cost(parts), [cost(1)] * spent, CAP, "this test")
    except BudgetExceededError:
        return False
    return True


def looks_too_late(spent, parts):
    """A rule that stops only when the cap is already reached."""
    return spent < PARTS


def after_release(value, mu2):
    """Expectation of ``value`` one release later, at every L."""
    return WEIGHTS @ np.array([np.interp(L + mu2 / 2 + math.sqrt(mu2) * z, L, value) for z in Z])


def reached(epsilon, allows, strategy=None):
    """Delta of the best adversary, or of one that spends ``strategy(L, spent)`` parts at a time."""
    stop = np.clip(1 - np.exp(epsilon - L), 0, None)

    @cache
    def value(spent):
        options = [stop]
        for parts in range(1, PARTS + 1):
            refused = not allows(spent, parts)
            options.append(stop if refused else after_release(value(spent + parts), cost(parts)))
        if strategy is None:
            return np.max(options, axis=0)
        return np.choose(strategy(L, spent), options)

    return float(np.interp(0.0, L, value(0)))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0])
def test_the_best_adaptive_adversary_gets_what_the_cap_allows_and_no_more(epsilon):
    allowed = gaussian_delta(math.sqrt(CAP.mu2), epsilon)
    at_once = reached(epsilon, ledger_allows, lambda L, spent: np.full(L.size, PARTS))
    assert at_once == pytest.approx(allowed, abs=ERROR)
    assert reached(epsilon, ledger_allows) == pytest.approx(allowed, abs=ERROR)


def test_one_who_spends_more_when_the_evidence_is_in_favour_gains_nothing():
    def greedy(L, spent):
        return np.where(L > 0.2, 3, 1) if spent else np.ones(L.size, int)

    assert reached(1.0, ledger_allows, greedy) <= gaussian_delta(math.sqrt(CAP.mu2), 1.0) + ERROR


def test_a_rule_that_looks_at_what_was_spent_only_afterwards_is_noticed():
    allowed = gaussian_delta(math.sqrt(CAP.mu2), 1.0)
    assert reached(1.0, looks_too_late) > 2 * allowed
