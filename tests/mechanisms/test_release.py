"""The arithmetic of one release, derived again from the adversary's covariance in grid units.

The module under test works in units of site means and takes mu from a closed formula. Here everything is in
grid steps: y_i = F_i + E_i + G_i for the honest sites i, and the sum of their masks. For every set of honest
sites the covariance of that view is written down and inverted, and the worst set is taken.
"""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.release import MAX_BLOCK_WORDS, plan_release, stream_distance
from capedjica.privacy import gaussian_mu
from capedjica.privacy.reserved_delta import RESERVED_DELTA
from capedjica.securesum.discrete_gaussian import grid_delta
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import MAX_SIGMA
from capedjica.securesum.parameters import Roster

NAMES = tuple(f"s{i}" for i in range(6))
IDENTITIES = [Identity.generate().public(name) for name in NAMES]


def shift_of(mask, noise, honest, site):
    """Shift, in standard deviations, of the view of ``honest`` when F of ``site`` moves by one step."""
    if math.isinf(mask[site]):
        # Every message is uniform by itself; with the sum of masks only the sum of the rest is left.
        return 1 / math.sqrt(sum(noise[name] ** 2 for name in honest))
    messages = np.diag([mask[name] ** 2 + noise[name] ** 2 for name in honest])
    with_sum = np.array([[mask[name] ** 2] for name in honest])
    covariance = np.block([[messages, with_sum], [with_sum.T, with_sum.sum(keepdims=True)]])
    move = np.zeros(len(honest) + 1)
    move[honest.index(site)] = 1.0
    scale = np.sqrt(np.diag(covariance))
    return math.sqrt(move / scale @ np.linalg.solve(covariance / np.outer(scale, scale), move / scale))


def worst_mu(plan, contract, site):
    """Brute force over the colluders, with the sensitivity from first principles."""
    query, sizes = plan.query, contract.enrolled
    agreed = contract.weights or [size / sum(contract.subjects) for size in contract.subjects]
    weight = dict(zip(contract.roster.names, agreed, strict=True))
    weight_sum = sum(weight[name] for name in plan.participants)
    n_subjects = sum(sizes[name] for name in plan.participants)
    # mean = sum of w_s (1/M_s) sum v, and the result is step / n_subjects times the integers
    per_subject = weight[site] / weight_sum / sizes[site] * n_subjects / plan.step
    move = query.spread * query.clip * per_subject + math.sqrt(query.size)
    others = [name for name in plan.participants if name != site]
    n_honest = len(plan.participants) - contract.roster.n_colluding
    return move * max(
        shift_of(plan.mask, plan.noise, [site, *rest], site)
        for rest in itertools.combinations(others, n_honest - 1)
    )


def random_case(chance):
    n_sites = chance.randint(3, 6)
    colluding = chance.randint(1, max(1, n_sites - 2))
    threshold = max(2 * n_sites // 3 + 1, (n_sites + colluding) // 2 + 1)
    weights = np.array([chance.uniform(0.1, 1) for _ in range(n_sites)])
    same = chance.uniform(0.1, 20)
    contract = Contract(
        title="t",
        roster=Roster(tuple(IDENTITIES[:n_sites]), threshold, colluding),
        subjects=tuple(chance.randint(1, 500) for _ in range(n_sites)),
        stages=(
            Stage(
                Query(
                    "q",
                    chance.choice((1, 20, 5000)),
                    10 ** chance.uniform(-3, 3),
                    chance.choice((2, 2**0.5, 1)),
                )
            ),
        ),
        epsilon=tuple(chance.choice((same, chance.uniform(0.1, 20))) for _ in range(n_sites)),
        delta=1e-5,
        masking=chance.choice(("uniform", "paper")),
        weights=tuple((weights / weights.sum()).tolist()) if chance.random() < 0.5 else (),
    )
    invited = tuple(sorted(chance.sample(NAMES[:n_sites], chance.randint(threshold, n_sites))))
    left = chance.randint(max(threshold, colluding + 1), max(len(invited), threshold))
    participants = tuple(sorted(chance.sample(invited, min(left, len(invited)))))
    return contract, participants, invited, 10 ** chance.uniform(-4, 0)


@pytest.mark.parametrize("seed", range(8))
def test_every_mu_is_that_of_the_adversarys_covariance_and_within_the_budget(seed):
    chance = random.Random(seed)
    lost = set()
    for _ in range(40):
        contract, participants, invited, fraction = random_case(chance)
        plan = plan_release(contract, contract.stages[0].query, fraction, participants, invited)
        lost.add((contract.masking, participants != invited))
        made = plan_release(contract, contract.stages[0].query, fraction, invited)
        assert plan.mask == {name: made.mask[name] for name in participants}
        targets = [
            gaussian_mu(contract.epsilon[NAMES.index(name)], contract.delta) * math.sqrt(fraction)
            for name in participants
        ]
        for name, target in zip(participants, targets, strict=True):
            assert plan.mu[name] == pytest.approx(worst_mu(plan, contract, name), rel=1e-7)
            assert plan.mu[name] <= target
        # one site at least uses what it may, up to what the rounding to a grid takes
        largest = max(plan.mu[name] / target for name, target in zip(participants, targets, strict=True))
        assert largest > 0.999
    assert len(lost) == 4  # both masks, with and without lost sites


def extreme_case(chance):
    """Settings that nobody would choose: the plan is sound, or refused in words."""
    contract, participants, invited, _ = random_case(chance)
    weights = np.array([10 ** chance.uniform(-5, 0) for _ in contract.subjects])
    query = Query("q", chance.choice((1, 100, 10**6)), 10 ** chance.uniform(-30, 30))
    extreme = dataclasses.replace(
        contract,
        stages=(Stage(query),),
        subjects=tuple(10 ** chance.randint(0, 6) for _ in contract.subjects),
        epsilon=tuple(10 ** chance.uniform(-4, 3) for _ in contract.subjects),
        delta=10 ** chance.uniform(-9, -1),
        weights=tuple((weights / weights.sum()).tolist()),
    )
    return extreme, participants, invited, 10 ** chance.uniform(-12, 0)


@pytest.mark.parametrize("make_case", [random_case, extreme_case])
@pytest.mark.parametrize("seed", range(4))
def test_the_grid_holds_what_is_put_on_it(seed, make_case):
    """Equation (2), the least noise, the sampler's range and a step that is a power of two."""
    chance = random.Random(100 + seed)
    refused = 0
    for _ in range(60):
        contract, participants, invited, fraction = make_case(chance)
        try:
            plan = plan_release(contract, contract.stages[0].query, fraction, participants, invited)
        except InputError:
            refused += 1
            continue
        longest = plan.query.clip * max(plan.scale.values()) / plan.step
        spread = math.sqrt(sum(noise**2 for noise in plan.noise.values()))
        assert plan.n_subjects * (longest + 1) + 12 * spread < 2**62
        assert 2**16 <= min(plan.noise.values()) <= max(plan.noise.values()) <= MAX_SIGMA
        assert all(mask == math.inf or mask <= MAX_SIGMA for mask in plan.mask.values())
        assert math.frexp(plan.step)[0] == 0.5
        assert plan.output_std == pytest.approx(spread * plan.step / plan.n_subjects)
        assert max(plan.grid_delta.values()) < 1e-6 * contract.delta * fraction
        for name in participants:
            assert plan.mu[name] <= contract.total_mu[name] * math.sqrt(fraction)
    assert refused == 0 if make_case is random_case else 0 < refused < 60


def test_what_the_grid_adds_is_bounded_for_the_worst_honest_sites():
    chance = random.Random(7)
    for _ in range(40):
        contract, participants, invited, fraction = random_case(chance)
        plan = plan_release(contract, contract.stages[0].query, fraction, participants, invited)
        n_honest = len(participants) - contract.roster.n_colluding
        worst = max(
            grid_delta(plan.mu[site], [plan.noise[name] for name in honest], plan.query.size)
            for honest in itertools.combinations(participants, n_honest)
            for site in honest
        )
        assert max(plan.grid_delta.values()) >= worst * (1 - 1e-9)


def test_more_colluders_cost_more_noise_and_lost_sites_too():
    """The noise of each site is sized for the participants less S_C, which does not shrink with them."""

    def noise(n_participants, colluding):
        roster = Roster(tuple(IDENTITIES), 5, colluding)
        contract = Contract("t", roster, (50,) * 6, (Stage(Query("q", 3, 1.0)),), (1.0,) * 6, 1e-5)
        plan = plan_release(contract, contract.stages[0].query, 1.0, NAMES[:n_participants])
        (value,) = {round(n * plan.step, 6) for n in plan.noise.values()}
        return value

    for n_participants in (5, 6):
        for colluding in (1, 2, 3):
            expected = noise(6, 1) * math.sqrt(5 / (n_participants - colluding))
            assert noise(n_participants, colluding) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mechanism", ["cape", "pooled"])
def test_the_grid_takes_no_more_of_the_reserve_than_is_charged_of_the_budget(mechanism):
    """A ledger adds up charges: a site that is charged less than the fraction could be asked more often."""
    refused = 0
    for delta in 10.0 ** -np.arange(5.0, 20.0, 0.25):
        contract = Contract(
            title="unequal budgets",
            roster=Roster(tuple(IDENTITIES[:3]), 3, 1),
            subjects=(40, 40, 40),
            stages=(Stage(Query("q", 50, 1.0)),),
            epsilon=(0.01, 1.0, 8.0),
            delta=float(delta),
            mechanism=mechanism,
        )
        try:
            plan = plan_release(contract, contract.stages[0].query, 0.5, contract.roster.names)
        except InputError:
            refused += 1
            continue
        for name, mu in plan.mu.items():
            charged = (mu / contract.total_mu[name]) ** 2
            assert plan.grid_delta[name] <= contract.delta * RESERVED_DELTA / 2 * charged
    assert 0 < refused < 60


@pytest.mark.parametrize(("size", "n_sites"), [(1, 2), (10**4, 4), (10**7, 30)])
def test_the_streams_of_a_release_are_counted(size, n_sites):
    """Added up stream by stream: noise and mask of each site, and of a block the masks and the secure sum."""
    samples = size**2 * 2.0**-122
    blocks = MAX_BLOCK_WORDS // 2
    words = blocks * (blocks - 1) * 2.0**-129
    pairs = len(list(itertools.combinations(range(n_sites), 2)))
    least = n_sites * 2 * samples + (pairs + 2 * n_sites) * words
    assert least <= stream_distance(size, n_sites) <= least * (1 + 1 / n_sites)


def test_a_release_whose_stream_would_need_more_than_the_reserve_is_refused():
    """At epsilon 10 what separates the stream from random numbers counts e^10 times; beyond, it is told."""
    query = Query("q", 50, 1.0)
    contract = Contract(
        title="tiny delta",
        roster=Roster(tuple(IDENTITIES[:4]), 4, 1),
        subjects=(40,) * 4,
        stages=(Stage(query),),
        epsilon=(10.0,) * 4,
        delta=1e-12,
    )
    plan_release(contract, query, 1.0, contract.roster.names)
    with pytest.raises(InputError, match="stream"):
        plan_release(contract, query, 1e-3, contract.roster.names)
    beyond = dataclasses.replace(contract, epsilon=(10.1,) * 4)
    plan_release(beyond, query, 1e-3, contract.roster.names)
