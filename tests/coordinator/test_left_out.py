"""A run with a site that lies: it is left out, named in the results, and remembered when the run goes on."""

import json
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from capedjica.coordinator.flare import status as flare_status
from capedjica.coordinator.run import run_status
from capedjica.coordinator.run.aggregation import conduct
from capedjica.coordinator.run.journal import read_records
from capedjica.coordinator.run.report import run_findings, run_report
from capedjica.coordinator.run.results import Cost
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.site_standing import STANDING
from capedjica.coordinator.run.watcher import Watcher
from capedjica.engines.inprocess import InProcessEngine
from capedjica.one_machine.local_run import find_sites
from capedjica.privacy.charges import epsilon_of
from capedjica.report.lay_summary import in_short
from capedjica.report.methods import paragraph
from capedjica.site.approval.participation import taking_part
from capedjica.site.run import attending
from tests.mechanisms.world import Liar
from tests.support.small_study import make_study

LIE = "it says that it spent 0.9 of its budget; this run asked it for 0"


class InterruptedRunError(Exception):
    """The coordinator's machine goes down."""


@contextmanager
def sites_of(study, folder):
    with ExitStack() as held:
        sites = {}
        for home in find_sites(study, folder / "sites"):
            held.enter_context(taking_part(home, study))
            sites[home.settings.name] = held.enter_context(attending(home, study, None))
        yield sites


def run(study, folder, sites, carrier=lambda letter: [letter.data]):
    run_folder = RunFolder(folder / "run")
    with run_folder.claim(study) as state:
        conduct(study, run_folder, state, InProcessEngine(sites, carrier).exchange, None, Watcher())
    return run_folder


def lying(site):
    return Liar(site, "Status", lambda said: msgspec.structs.replace(said, spent=0.9))


def test_who_lied_in_an_interrupted_run_is_left_out_of_the_rest_and_named_in_the_results(tmp_path):
    study = make_study(tmp_path, iterations=3)

    def stop(letter):
        if letter.direction == "answer" and letter.round == 8:
            raise InterruptedRunError
        return [letter.data]

    with sites_of(study, tmp_path) as honest:
        with pytest.raises(InterruptedRunError):
            run(study, tmp_path, honest | {"s3": lying(honest["s3"])}, stop)
        remembered = json.loads((tmp_path / "run" / STANDING).read_text())
        assert remembered["liars"] == ["s3"]
        assert remembered["reasons"] == {"s3": LIE}
        folder = run(study, tmp_path, honest)
    privacy = json.loads((folder.path / "privacy.json").read_text())
    assert privacy["left_out"] == {"s3": LIE}
    assert privacy["lost"] == ["s3"]
    assert not [release for release in privacy["releases"] if "s3" in release["mu"]]
    assert folder.read_json("privacy.json", Cost).statement


def test_nobody_is_left_out_of_a_run_of_honest_sites(tmp_path):
    study = make_study(tmp_path, iterations=3)
    with sites_of(study, tmp_path) as honest:
        folder = run(study, tmp_path, honest)
    assert json.loads((folder.path / "privacy.json").read_text())["left_out"] == {}
    remembered = json.loads((folder.path / STANDING).read_text())
    assert remembered["liars"] == []
    assert remembered["reasons"] == {}


@pytest.mark.parametrize("look", [run_status.look, flare_status.look])
def test_an_interrupted_release_counts_as_spent_in_the_status(look, tmp_path):
    study = make_study(tmp_path, iterations=3)

    def stop(letter):
        if letter.direction == "answer" and letter.round == 8:
            raise InterruptedRunError
        return [letter.data]

    with sites_of(study, tmp_path) as honest, pytest.raises(InterruptedRunError):
        run(study, tmp_path, honest, stop)
    ledgers = [home.totals() for home in find_sites(study, tmp_path / "sites")]
    spent = max(epsilon_of(totals.overall.mu2, study.contract.delta) for totals in ledgers)
    facts = look(study, tmp_path / "run")
    assert facts["n_done"] == len(read_records(tmp_path / "run" / "releases.bin", study.contract)) > 0
    assert float(facts["epsilon"]) == pytest.approx(spent, rel=1e-3)
    assert float(facts["epsilon"]) >= spent


def without(name, first):
    """Return a carrier that loses every answer of a site from a release on."""

    def carry(letter):
        mute = letter.direction == "answer" and letter.site == name and letter.round >= first
        return [] if mute else [letter.data]

    return carry


def page_after(folder, study, name, first):
    """Run a study that loses a site; return what is lost and absent, the methods and the first sentences."""
    with sites_of(study, folder) as honest:
        ended = run(study, folder, honest, without(name, first))
    findings = run_findings(ended.path)
    absent = ended.read_json("privacy.json", Cost).absent
    return findings.privacy.lost, absent, paragraph(findings), " ".join(in_short(findings)), findings.who


def test_participants_of_a_site_that_took_no_part_are_in_no_count(tmp_path):
    study = make_study(tmp_path, iterations=3)
    lost, absent, methods, short, who = page_after(tmp_path, study, "s3", 0)
    assert (lost, absent) == (("s3",), ["s3"])
    assert who == "23 participants at 3 of 4 sites"
    assert methods.startswith(f"Brain networks of {who} were estimated")
    assert "lost during the run" not in methods
    assert "used the scans of the sites that took part" in run_report(tmp_path / "run").html
    assert "The data of 23 participants, from 3 sites, were all on one computer." in short


def test_a_site_lost_on_the_way_is_counted_and_its_loss_told(tmp_path):
    study = make_study(tmp_path, iterations=3)
    lost, absent, methods, short, who = page_after(tmp_path, study, "s3", 8)
    assert (lost, absent) == (("s3",), [])
    assert who == "30 participants at 4 sites"
    assert "The last steps were computed without 1 site (7 participants) lost during the run." in methods
    assert "The data of 30 participants, from 4 sites, were all on one computer." in short


def test_a_damaged_record_stops_the_run_in_words_before_anything_is_asked(tmp_path):
    study = make_study(tmp_path, iterations=3)
    with sites_of(study, tmp_path) as honest:
        run(study, tmp_path, honest)
        (tmp_path / "run" / STANDING).write_text("{}")
        with pytest.raises(ValueError, match=r"standing\.json is not a valid record of the sites of a run"):
            run(study, tmp_path, honest)
