"""Against a lying aggregator with colluding sites: one sum over all honest survivors is learnt, or none.

Each attack that must fail here is also run against a deliberately weakened protocol, where it must succeed.
"""

import itertools
import random

import pytest

from capedjica.securesum.parameters import Roster, SumParameters
from capedjica.securesum.site import SiteSum
from tests.attacks.messages.hostile_aggregator import HostileAggregator
from tests.securesum.consortium import Consortium


class WeakRoster(Roster):
    """A roster that admits any threshold: for controls only."""

    def __post_init__(self):
        pass


def weaken(consortium, threshold):
    p = consortium.parameters
    roster = WeakRoster(p.roster.sites, threshold, p.roster.n_colluding)
    consortium.parameters = SumParameters(p.study_hash, roster, p.length, p.block, p.attempt)


def random_view(adversary, name, among):
    """Any set with ``name`` in it, more often than not a large one."""
    among = sorted(among)
    size = adversary.random.randint(max(1, adversary.consortium.threshold - 1), len(among))
    return {name, *adversary.random.sample(among, min(size, len(among)))}


def survivor_views(adversary):
    """Which survivors each honest site is told of: one truth, a split around a target, or many lies."""
    everyone, choice = set(adversary.everyone), adversary.random.random()
    if choice < 0.2 or len(adversary.honest) == 1:
        return dict.fromkeys(adversary.honest, everyone)
    if choice < 0.8:
        order = adversary.random.sample(adversary.honest, len(adversary.honest))
        cut = adversary.random.randint(1, len(order) - 1)
        target, dead = order[0], set(order[cut:][: adversary.random.randint(0, 1)])
        return {name: everyone - dead if i < cut else everyone - {target} for i, name in enumerate(order)}
    return {name: random_view(adversary, name, everyone) for name in adversary.honest}


def play(adversary):
    """One attempt: every round with lies of the adversary's choice, and mischief between any two moves."""
    truthful = adversary.random.random() < 0.7
    everyone = set(adversary.everyone)
    for list_round in (adversary.list_keys, adversary.list_shares):
        for name in adversary.random.sample(adversary.honest, len(adversary.honest)):
            for _ in range(2):
                list_round(name, everyone if truthful else random_view(adversary, name, everyone))
            maybe_disturb(adversary)
    told = survivor_views(adversary)
    for name in adversary.random.sample(adversary.honest, len(adversary.honest)):
        adversary.list_survivors(name, told[name])
        adversary.list_survivors(name, random_view(adversary, name, everyone))
        maybe_disturb(adversary)
    for name in adversary.random.sample(adversary.honest, len(adversary.honest)):
        adversary.mix_agreements(name)
        for view in list(adversary.attempt.agreements):
            adversary.list_agreements(name, view)
        maybe_disturb(adversary)


def maybe_disturb(adversary):
    if adversary.random.random() < 0.3:
        adversary.disturb()


def attacks(n_sites, n_colluding, threshold, seeds, weak=False):
    """Play many attempts; yield the adversary after each."""
    consortium = Consortium(n_sites, n_colluding=None if weak else n_colluding)
    if weak:
        weaken(consortium, threshold)
    assert consortium.threshold == threshold
    names = consortium.names
    adversary = HostileAggregator(consortium, names[:n_colluding], random.Random(0))
    for seed in range(seeds):
        adversary.random.seed(seed)
        play(adversary)
        yield adversary
        consortium.next_attempt(blocks=seed % 2)
        adversary.begin()


CASES = [(2, 1, 2), (3, 1, 3), (4, 1, 3), (5, 1, 4), (7, 2, 5)]


def check_nothing_but_one_sum(adversary):
    """The guarantee, as the module of the site states it."""
    consortium, seen = adversary.consortium, adversary.attempt
    assert adversary.both_recovered() == []
    assert len(set(seen.unmasked_for.values())) <= 1
    exposed = adversary.exposed_sums()
    assert len(exposed) <= 1
    for group in exposed:
        (survivors,) = set(seen.unmasked_for.values())
        assert group == set(survivors) & set(adversary.honest)
        assert len(group) >= consortium.threshold - len(adversary.colluders)


@pytest.mark.parametrize(("n_sites", "n_colluding", "threshold"), CASES)
def test_at_most_one_sum_of_all_honest_survivors_is_learnt(n_sites, n_colluding, threshold):
    exposed = 0
    for adversary in attacks(n_sites, n_colluding, threshold, seeds=60):
        check_nothing_but_one_sum(adversary)
        exposed += len(adversary.exposed_sums())
    # The adversary is not powerless: it does get the sums that it may have, and is refused on the way.
    assert exposed > 0
    assert adversary.refusals > 60


@pytest.mark.full
@pytest.mark.parametrize(("n_sites", "n_colluding", "threshold"), [*CASES, (10, 3, 7), (13, 4, 9)])
def test_at_most_one_sum_of_all_honest_survivors_is_learnt_in_many_attacks(n_sites, n_colluding, threshold):
    for adversary in attacks(n_sites, n_colluding, threshold, seeds=3000 // n_sites):
        check_nothing_but_one_sum(adversary)


@pytest.mark.parametrize(("n_sites", "n_colluding", "threshold"), [(4, 2, 3), (5, 1, 3), (7, 3, 5)])
def test_control_the_same_attacks_recover_both_secrets_below_the_threshold(n_sites, n_colluding, threshold):
    """2t <= S + S_C, which a roster refuses: the site that is called dead and alive loses its input."""
    assert 2 * threshold <= n_sites + n_colluding
    played = attacks(n_sites, n_colluding, threshold, seeds=300, weak=True)
    assert any(adversary.both_recovered() for adversary in played)


def kill_all_but_two(adversary):
    """Ten sites, three colluding, t = 7: tell each honest site of three others lost, never the same way.

    Five of the seven honest sites are called dead by four honest sites each; with the colluders' three
    shares that is t = 7, so their mask keys are recovered and the sum of the other two is bare.
    """
    kept, killed = adversary.honest[:2], adversary.honest[2:]
    dead = {name: {killed[(i + k) % 5] for k in (1, 2, 3)} for i, name in enumerate(killed)}
    dead[kept[0]], dead[kept[1]] = {killed[i] for i in (0, 1, 2)}, {killed[i] for i in (3, 4, 0)}
    everyone = set(adversary.everyone)
    for name, list_round in itertools.chain(
        itertools.product(adversary.honest, [adversary.list_keys]),
        itertools.product(adversary.honest, [adversary.list_shares]),
    ):
        list_round(name, everyone)
    for name in adversary.honest:
        adversary.list_survivors(name, everyone - dead[name])
    for name in adversary.honest:
        adversary.mix_agreements(name)
        for view in list(adversary.attempt.agreements):
            adversary.list_agreements(name, view)
    return set(kept)


def ten_sites():
    consortium = Consortium(10)
    return HostileAggregator(consortium, consortium.names[:3], random.Random(0))


def test_split_views_do_not_expose_a_small_group():
    adversary = ten_sites()
    kill_all_but_two(adversary)
    assert adversary.exposed_sums() == []
    assert adversary.attempt.unmasked_for == {}


def test_control_split_views_expose_a_small_group_without_agreement(monkeypatch):
    """With a threshold that is admitted: it is the round of agreement that stops this, and nothing else."""
    monkeypatch.setattr(SiteSum, "_check_agreements", lambda self, request: None)
    adversary = ten_sites()
    kept = kill_all_but_two(adversary)
    assert adversary.both_recovered() == []
    assert kept in adversary.exposed_sums()
    assert len(kept) < adversary.consortium.threshold - len(adversary.colluders)


class ForgetfulRegister:
    def claim(self, study_hash, block, attempt):
        pass


def restart_and_split(consortium):
    """Finish an attempt with a site alive; restart all sites, and replay the attempt with it dead."""
    adversary = HostileAggregator(consortium, consortium.names[:1], random.Random(0))
    everyone, target = set(adversary.everyone), adversary.honest[0]
    learnt = []
    for survivors in (everyone, everyone - {target}):
        for list_round in (adversary.list_keys, adversary.list_shares):
            for name in adversary.honest:
                list_round(name, everyone)
        for name in adversary.honest:
            adversary.list_survivors(name, survivors)
        for name in adversary.honest:
            adversary.list_agreements(name, survivors)
        learnt += adversary.exposed_sums()
        for name in adversary.honest:
            adversary.restart(name)
        adversary.attempt.seed_holders.clear()
        adversary.attempt.key_holders.clear()
    return learnt


def test_a_restart_yields_no_second_sum():
    assert len(restart_and_split(Consortium(5))) == 1


def test_control_a_restart_yields_a_second_sum_from_sites_that_forget():
    """Two sums that differ in one site are that site's input: what the register is for."""
    consortium = Consortium(5)
    consortium.registers = dict.fromkeys(consortium.names, ForgetfulRegister())
    first, second = restart_and_split(consortium)
    assert len(first ^ second) == 1
