"""Every lie of a dishonest aggregator against the sites of a study, with their ledgers on disk."""

from contextlib import ExitStack

import pytest

from capedjica.engines.inprocess import InProcessEngine
from capedjica.one_machine.local_run import find_sites
from capedjica.site.approval.participation import taking_part
from capedjica.site.run import attending
from tests.attacks.messages.hostile_messages import attack
from tests.support.small_study import make_study

OTHER_STUDY = ("a message belongs to another study than the one agreed on",)
DEAD = "a site called dead to one and alive to another"
SPLIT = "split views of who is there"
KEPT_BACK = ", others' agreements kept back"
DIFFERENT = "were told of different survivors: nothing is unmasked"
TOO_FEW = "sites agreed on the survivors, 3 are needed"
USED = ("already answered another request; a new slot is needed",)
# What sites say to each lie, each reason by at least one of them.
REASONS = {
    "altered study, twice the epsilon": OTHER_STUDY,
    "altered study, a larger count of one site": OTHER_STUDY,
    "altered study, a larger weight of one site": OTHER_STUDY,
    "altered study, nobody colludes": OTHER_STUDY,
    "altered study, an invented peer in the roster": OTHER_STUDY,
    "an invented peer among the keys": ("Advertisement of site s4 is not signed by that site's pinned key",),
    "smaller noise: a larger part of the budget than agreed": ("was not agreed on as it is asked",),
    "smaller noise: other participants than agreed": ("the participants are not those that were agreed on",),
    DEAD: (DIFFERENT,),
    f"{DEAD}{KEPT_BACK}": (TOO_FEW,),
    SPLIT: ("sites dealt shares, 3 are needed", DIFFERENT),
    f"{SPLIT}{KEPT_BACK}": ("sites dealt shares, 3 are needed", TOO_FEW),
    "replayed block": ("claimed block 0 before: block numbers grow",),
    "replayed block, other slots": ("claimed block 0 before: block numbers grow",),
    "old checkpoint, another state under a used slot": USED,
    "old checkpoint, other participants under a used slot": USED,
    "a block beyond the budget": ("unused slots would use more than the whole budget",),
    "a block so far ahead that none could follow": ("is far ahead of 7, the last that it claimed",),
    "a stage that was not agreed on": ("a slot belongs to a stage that is not in the contract",),
    "an invented peer invited": ("the invited sites are not sites of the roster in order",),
    "a release of a block that was never made": ("was not claimed at this site; claim its block first",),
}


def test_no_lie_obtains_a_release_or_a_charge(tmp_path):
    """Each is refused by the sites, in their own words.

    One is harmless and not refused: the aggregator of an old checkpoint that asks again what was answered
    gets the same bytes, uncharged.
    """
    study = make_study(tmp_path, iterations=3)
    homes = find_sites(study, tmp_path / "sites")
    with ExitStack() as held:
        sites = {}
        for home in homes:
            held.enter_context(taking_part(home, study))
            sites[home.settings.name] = held.enter_context(attending(home, study, None))
        outcomes = attack(study.contract, InProcessEngine(sites).exchange)
    check(outcomes, study, homes)


def check(outcomes, study, homes):
    """One honest release was made and charged at every site; sites refused every attack."""
    honest, again = outcomes.pop("honest"), outcomes.pop("old checkpoint, the same question")
    assert honest["answers"] == len(homes)
    assert again["same"], "another message under a used slot"
    assert outcomes.keys() == REASONS.keys()
    for name, outcome in outcomes.items():
        check_refused(name, outcome, [home.settings.name for home in homes])
    for home in homes:
        with home.open_ledger() as ledger:
            totals = ledger.totals()
        charged = totals.studies[study.contract.hash]
        assert (charged.n_releases, totals.overall.n_releases) == (1, 1), home.settings.name
        assert charged.mu2 == pytest.approx(honest["mu"][home.settings.name] ** 2, rel=1e-12)


def check_refused(name, outcome, sites):
    """Nothing was obtained, and it was the sites that refused; the last is not lied to in every attack."""
    assert outcome["answers"] == 0, (name, outcome)
    assert set(sites[:-1]) <= outcome["refusals"].keys() <= set(sites), (name, outcome)
    said = [reason for reasons in outcome["refusals"].values() for reason in reasons]
    for words in REASONS[name]:
        assert any(words in reason for reason in said), (name, words, said)
    if name.startswith((DEAD, SPLIT)):
        assert outcome["unmasked"] == [], (name, outcome)
