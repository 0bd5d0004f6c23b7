"""Every lie of a dishonest aggregator against the sites of a study, with their ledgers on disk."""

from contextlib import ExitStack

from capedjica.engines.inprocess import InProcessEngine
from capedjica.study.attending import attending
from capedjica.study.participation import taking_part
from capedjica.study.running import find_sites
from capedjica.study.watching import Watcher
from tests.attacks.hostile_messages import attack
from tests.study.small_study import make_study


def test_no_lie_obtains_a_release_or_a_charge(tmp_path):
    study = make_study(tmp_path, iterations=3)
    homes = find_sites(study, tmp_path / "sites")
    with ExitStack() as held:
        sites = {}
        for home in homes:
            held.enter_context(taking_part(home, study))
            sites[home.settings.name] = held.enter_context(attending(home, study, None, Watcher()))
        outcomes = attack(study.contract, InProcessEngine(sites).exchange)
    check(outcomes, study, homes)


def check(outcomes, study, homes):
    """One honest release was made and charged at every site; no attack obtained anything."""
    assert outcomes.pop("honest")["answers"] == len(homes)
    for name, outcome in outcomes.items():
        assert outcome["answers"] == 0, (name, outcome)
        assert outcome["reasons"] or name.endswith("the same question"), name
    for home in homes:
        with home.open_ledger() as ledger:
            assert ledger.totals().studies[study.contract.hash].n_releases == 1, home.settings.name
