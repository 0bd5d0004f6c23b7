"""A run that was interrupted or completed, and then its folder, its study or its sites are changed."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from capedjica.coordinator.run.comparison import compare_runs
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.watcher import Watcher
from capedjica.errors import CapedjicaError, InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.participation import taking_part
from capedjica.study.study_file import Study
from tests.one_machine.test_local_run import Interrupt, check_privacy, ledger_sums, run
from tests.support.small_study import changed, make_study

RESULTS = [
    "maps.csv",
    "maps.npy",
    "maps.png",
    "mixing.npy",
    "privacy.json",
    "provenance.json",
    "unmixing.npy",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with one study interrupted after three means, and one complete."""
    folder = tmp_path_factory.mktemp("runs")
    for name, after in {"interrupted": 3, "complete": None}.items():
        study = make_study(folder / name)
        if after is None:
            run(folder / name, study, "run")
        else:
            with pytest.raises(KeyboardInterrupt):
                run(folder / name, study, "run", watcher=Interrupt(after))
    return folder


@pytest.fixture
def interrupted(runs, tmp_path):
    return shutil.copytree(runs / "interrupted", tmp_path / "study")


@pytest.fixture
def complete(runs, tmp_path):
    return shutil.copytree(runs / "complete", tmp_path / "study")


def refused(folder, kind, message):
    """The run does not go on, says why, and spends nothing."""
    study = Study.load(folder)
    with pytest.raises(kind, match=message) as caught:
        run(folder, study, "run")
    assert "nothing was spent" not in str(caught.value)


def test_scans_that_were_lost_in_between(interrupted):
    """They are missed before anything more is spent; something was spent before, and nothing else is said."""
    study, scan = Study.load(interrupted), interrupted / "sites" / "s1" / "data" / "sub-00.npy"
    before, content = ledger_sums(study, interrupted), scan.read_bytes()
    scan.unlink()
    refused(
        interrupted, InputError, "cannot be resumed; nothing more was spent: site s1: the study expects 6"
    )
    assert ledger_sums(study, interrupted) == before
    scan.write_bytes(content)
    assert run(interrupted, study, "run").complete
    check_privacy(study, interrupted, "run")


def test_limits_that_were_lowered_in_between(interrupted):
    file = interrupted / "sites" / "s2" / "site.toml"
    file.write_text(file.read_text().replace("total_epsilon = 50.0", "total_epsilon = 9.0"))
    refused(interrupted, InputError, "nothing more was spent: site s2: the study may cost epsilon 10")


def test_a_study_that_was_changed_in_between(interrupted):
    study = Study.load(interrupted)
    (interrupted / "study.toml").unlink()
    changed(study, interrupted / "study.toml", epsilon=11.0)
    refused(
        interrupted,
        InputError,
        r"another study.*: privacy.epsilon: 10.0 changed to 11.0: give another",
    )


def test_a_journal_that_was_lost(interrupted):
    """What it held was paid for: the rest of the budget is not spent on beginning anew."""
    study = Study.load(interrupted)
    before = ledger_sums(study, interrupted)
    journal = interrupted / "run" / "releases.bin"
    content = journal.read_bytes()
    journal.unlink()
    refused(interrupted, InputError, r"site s1 has spent epsilon.*releases.bin is missing; restore it")
    assert ledger_sums(study, interrupted) == before
    journal.write_bytes(content)
    assert run(interrupted, study, "run").complete


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a valid state of a run"),
        (b"[]", "is not a valid state of a run"),
        (b"\xff", "is not a valid state of a run"),
        (b'{"schema": 2}', "run.json"),
    ],
)
def test_a_state_that_is_none(interrupted, content, message):
    (interrupted / "run" / "run.json").write_bytes(content)
    refused(interrupted, InputError, message)


def test_a_state_of_another_schema(interrupted):
    folder = RunFolder(interrupted / "run")
    folder.write("run.json", msgspec.json.encode(msgspec.structs.replace(folder.state(), schema=2)))
    refused(interrupted, InputError, "schema must be 1, got 2")


def test_a_run_that_is_called_complete_and_is_not_goes_on(interrupted):
    folder = RunFolder(interrupted / "run")
    folder.finish(folder.state())
    study = Study.load(interrupted)
    assert run(interrupted, study, "run").complete
    check_privacy(study, interrupted, "run")


def test_results_that_were_deleted_are_made_again_for_nothing(complete):
    study, folder = Study.load(complete), complete / "run"
    before, mixing = ledger_sums(study, complete), np.load(folder / "mixing.npy")
    for name in RESULTS:
        (folder / name).unlink()
    assert run(complete, study, "run").complete
    assert ledger_sums(study, complete) == before
    np.testing.assert_array_equal(np.load(folder / "mixing.npy"), mixing)
    assert {path.name for path in folder.iterdir()} >= set(RESULTS)


def test_a_folder_whose_first_file_was_cut_off(tmp_path):
    """A kill before anything had its name leaves hidden drafts only."""
    study = make_study(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / f".run.json.{'0' * 16}.part").write_text("{")
    assert run(tmp_path, study, "run").complete
    assert (tmp_path / "run" / "study.toml").exists()
    assert not list((tmp_path / "run").glob(".*.part"))


def test_one_run_of_a_study_at_a_time(tmp_path):
    """Two at once, in two folders, would spend the budget against each other."""
    study = make_study(tmp_path)
    other = changed(study, tmp_path / "other.toml", title="Another")
    homes = find_sites(study, tmp_path / "sites")
    with taking_part(homes[2], study):
        with pytest.raises(
            InputError, match="site s3 is already taking part in another run of 'A small study'"
        ):
            run(tmp_path, study, "run")
        assert not (tmp_path / "run").exists()
        assert run(tmp_path, other, "other").complete
    assert run(tmp_path, study, "run").complete


@pytest.mark.parametrize("mechanism", ["cape", "none"])
def test_what_is_not_private_has_no_epsilon_anywhere(tmp_path, mechanism):
    """Seeded noise, also of a run that was interrupted and drew some of it twice; and no noise at all."""
    terms = {"insecure_noise": True} if mechanism == "cape" else {"mechanism": "none", "epsilon": None}
    seed = {"insecure_noise_seed": 5} if mechanism == "cape" else {}
    study = make_study(tmp_path, **terms)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, study, "run", watcher=Interrupt(3), **seed)
    assert run(tmp_path, study, "run", **seed).resumed == 1
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert privacy["private"] is False
    numbers = [privacy[key] for key in ("epsilon", "mu", "spent_epsilon")]
    numbers += [number for site in privacy["sites"].values() for number in site.values()]
    numbers += [mu for release in privacy["releases"] for mu in release["mu"].values()]
    assert set(numbers) == {None}
    assert privacy["statement"].startswith("NOT PRIVATE")
    assert "complete. NOT PRIVATE" in (tmp_path / "run" / "log.txt").read_text()
    assert compare_runs([tmp_path / "run"])[0].epsilon is None


# All problems at once


def test_every_problem_of_every_site_is_named(tmp_path):
    study = make_study(tmp_path, simulated=False)
    sites = tmp_path / "sites"
    settings = (sites / "s1" / "site.toml").read_text()
    (sites / "s1" / "site.toml").write_text(
        settings.replace("study_epsilon = 20.0", "study_epsilon = 5.0").replace('"data"', '"nowhere"')
    )
    (sites / "s2" / "identity.pem").unlink()
    (sites / "s2" / "data" / "sub-00.npy").write_bytes(b"")
    (sites / "s3" / "approved").mkdir()
    (sites / "s3" / "approved" / "x.toml").write_text("[")
    with pytest.raises(CapedjicaError) as caught:
        run_study(study, find_sites(study, sites), tmp_path / "run")
    text = str(caught.value)
    for part in (
        "site s1: the study may spend epsilon 10",
        "site s1: it has not approved",
        f"site s1: {sites / 's1' / 'nowhere'} is not a folder; expected a folder with scans",
        "identity.pem",
        "sub-00.npy: an empty file",
        "site s3: it has not approved",
        "site s4: it has not approved",
    ):
        assert part in text
    assert text.count("identity.pem") == 1
    assert not (tmp_path / "run").exists()


def test_every_bad_settings_file_is_named(tmp_path):
    study = make_study(tmp_path)
    sites = tmp_path / "sites"
    (sites / "s1" / "site.toml").write_text("[")
    (sites / "s2" / "site.toml").write_text("schema = 1\n")
    shutil.rmtree(sites / "s3")
    with pytest.raises(InputError) as caught:
        find_sites(study, sites)
    for part in (
        "s1/site.toml is not valid TOML",
        "s2/site.toml: 5 problems",
        "no folder for site s1, s2, s3",
    ):
        assert part in str(caught.value)


class Spoil(Watcher):
    """Spoils a scan once the first mean is made."""

    def __init__(self, scan):
        self.scan = scan

    def step(self, step):
        self.scan.write_bytes(b"")


def messages(log):
    return [line.split(" ", 2)[2] for line in log.read_text().splitlines()]


def test_a_scan_that_is_lost_during_a_run_shows_at_its_site_alone(complete, tmp_path):
    """The run folder tells the same as if nothing had happened; the log of the site only its owner reads."""
    study = make_study(tmp_path / "spoilt")
    sites = tmp_path / "spoilt" / "sites"
    assert run(
        tmp_path / "spoilt", study, "run", watcher=Spoil(sites / "s1" / "data" / "sub-00.npy")
    ).complete
    assert messages(tmp_path / "spoilt" / "run" / "log.txt") == messages(complete / "run" / "log.txt")
    assert {path.name for path in (tmp_path / "spoilt" / "run").iterdir()} == {
        path.name for path in (complete / "run").iterdir()
    }
    logs = {name: (sites / name / "site.log").read_text() for name in study.contract.roster.names}
    assert "the scans of 1 of 6 participants could not be read" in logs["s1"]
    assert not any("could not be read" in logs[name] for name in ("s2", "s3", "s4"))
    for name in logs:
        assert (sites / name / "site.log").stat().st_mode & 0o777 == 0o600
