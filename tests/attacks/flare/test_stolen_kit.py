"""Somebody with a site's kit, and so with its certificate and its name, but with another Ed25519 identity."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from capedjica.coordinator.run.journal import Journal
from capedjica.engines.inprocess import InProcessEngine
from capedjica.flare import processes
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.messages import Ask, Begin
from capedjica.one_machine.flare_demo import start_site
from capedjica.one_machine.local_run import find_sites
from capedjica.site.agent.owner_commands import standing
from capedjica.site.approval.participation import taking_part
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.site.run import attending
from tests.attacks.messages.hostile_messages import Relay, Views, Wire, replace
from tests.federated.consortium import consortium
from tests.support.places import ROOT
from tests.support.small_study import LENGTH, SIDE, SIZES, make_study

HONEST = ("s1", "s2", "s3")
NOT_SIGNED = "Advertisement of site s4 is not signed by that site's pinned key"
# Ours, without what a site's program checks in itself.
PROGRAM = Path(__file__).parent / "thief"


def make_thief(folder):
    """Somebody who says to be s4: a fresh identity, a ledger of its own and made-up scans."""
    thief = SiteHome.create(folder, "s4", 50.0, 20.0, 1e-5, simulated=True)
    thief.data_path.mkdir()
    rng = np.random.default_rng(0)
    for index in range(SIZES[-1]):
        np.save(thief.data_path / f"sub-{index:02d}.npy", rng.normal(size=(LENGTH, SIDE**2)))
    return thief


def released(home):
    totals = home.totals()
    return 0 if totals is None else totals.overall.n_releases


@pytest.fixture
def parties(tmp_path, monkeypatch):
    """A study, the homes of its sites and the thief's, and how to reach three honest sites and the thief."""
    study = make_study(tmp_path, iterations=3)
    homes = {home.settings.name: home for home in find_sites(study, tmp_path / "sites")}
    thief = make_thief(tmp_path / "thief")
    monkeypatch.setattr("capedjica.site.approval.participation.why_not", lambda *_, **__: [])
    monkeypatch.setattr("capedjica.securesum.site._check_membership", lambda *_: None)
    with ExitStack() as held:
        sites = {}
        for name, home in {**homes, "s4": thief}.items():
            held.enter_context(taking_part(home, study))
            sites[name] = held.enter_context(attending(home, study, None))
        yield study.contract, homes, thief, InProcessEngine(sites).exchange


def test_an_honest_aggregator_goes_on_without_who_has_another_identity(parties):
    """Under the name of s4 nothing is released, to nobody, and nothing is charged."""
    contract, homes, thief, exchange = parties
    aggregator = Aggregator(contract, exchange)
    aggregator.mean(0)
    assert [release.participants for release in aggregator.releases] == [HONEST]
    assert aggregator.refusals == {"s4": "what came in the name of site s4 is not signed by its key"}
    assert {name: released(home) for name, home in homes.items()} == {"s1": 1, "s2": 1, "s3": 1, "s4": 0}
    assert released(thief) == 0


def test_sites_refuse_who_has_another_identity_also_from_an_aggregator_that_does_not(parties):
    contract, homes, thief, exchange = parties
    names = contract.roster.names
    honest = Wire(exchange)
    Aggregator(contract, honest).mean(0)
    begin, ask = replace(honest.last("s1", Begin), invited=list(names)), honest.last("s1", Ask)
    wire = Wire(exchange)
    everybody = dict.fromkeys(names, names)
    Relay(contract, wire, Views(everybody, everybody, fitting=False)).lead(begin, ask)
    assert (wire.answers, wire.unmasked) == ([], [])
    assert all(wire.refusals[name][0] == NOT_SIGNED for name in HONEST)
    assert [released(home) for home in (*homes.values(), thief)] == [1, 1, 1, 0, 0]


def start_thief(kit, thief, monkeypatch):
    """Connect with a site's key for the network, and a program, an identity and a folder of one's own."""
    shutil.copytree(kit.path, thief.folder / "studies" / kit.path.name)
    shutil.copytree(kit.workspace, thief.carrier_path / kit.workspace.name)
    own = kits.find_kit(thief)
    with monkeypatch.context() as patch:
        known = [str(PROGRAM), str(ROOT), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, known)))
        start_site(thief, own)
    return own


@pytest.mark.full
def test_on_flare_who_has_a_kit_and_another_identity_obtains_nothing(tmp_path, monkeypatch):
    """The thief is let in as s4 and answers; the three others make the study without it."""
    with consortium(tmp_path / "study", started=False) as made, ExitStack() as held:
        thief = make_thief(tmp_path / "thief")
        own = start_thief(made.kit("s4"), thief, monkeypatch)
        held.callback(processes.stop, own.path)
        made.start(*HONEST)
        assert made.run().complete
        with Journal.open(made.run_folder.journal_path, made.study.contract) as journal:
            assert {release.participants for release in journal.releases} == {HONEST}
        # It was asked, and its answers were not signed by the key that the study names.
        assert standing(own).asked is not None
        processes.stop(own.path)
        made.stop()
        assert [released(thief), released(made.home("s4"))] == [0, 0]
        assert all(released(made.home(name)) == made.n_releases for name in HONEST)
