"""Somebody withdraws their consent: no study reads their scans any more, whatever it was doing."""

import builtins
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from capedjica.coordinator.run.watcher import Watcher
from capedjica.data.cache import SeriesCache
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve, taking_part
from capedjica.site.check import site_report
from capedjica.site.consent import consents, withdrawal
from capedjica.site.consent.consents import NOTE, read_withdrawn, withdrawn_path
from capedjica.site.consent.withdrawal import withdraw
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import read_record
from capedjica.site.participants.cohort import call_roll, enrol, open_people
from capedjica.site.participants.enrolment import enrolment_path, read_enrolment
from capedjica.site.results import individual
from tests.support.in_process import run_main
from tests.support.small_study import SIZES, make_study

PERSON = "sub-03"


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def home(study, tmp_path):
    return SiteHome.load(tmp_path / "sites" / "s1")


def careful(home):
    """The same site, but one that approves nothing by itself."""
    file = home.folder / "site.toml"
    file.write_text(file.read_text().replace("auto_approve = true", "auto_approve = false"))
    return SiteHome.load(home.folder)


class Opened:
    """Names of the files that Python opens, however it does so."""

    def __init__(self, monkeypatch):
        self.names = []
        for module, name in ((builtins, "open"), (os, "open")):
            monkeypatch.setattr(module, name, self._noting(getattr(module, name)))
        monkeypatch.setattr("io.open", builtins.open)

    def _noting(self, function):
        def noting(file, *args, **kwargs):
            self.names.append(os.fspath(file) if not isinstance(file, int) else "")
            return function(file, *args, **kwargs)

        return noting

    def clear(self):
        self.names.clear()

    def of(self, home, person):
        return [name for name in self.names if str(name).startswith(str(home.data_path / person))]


def test_the_list_is_private_and_says_when(home):
    done = withdraw(home, PERSON)
    assert read_withdrawn(home) == {PERSON: done.since}
    assert withdrawn_path(home).stat().st_mode & 0o777 == 0o600
    again = withdraw(home, "03")
    assert (again.name, again.since) == (PERSON, done.since)
    withdraw(home, "sub-01")
    assert list(read_withdrawn(home)) == [PERSON, "sub-01"]


def test_a_stranger_is_refused(home):
    with pytest.raises(InputError, match=r"site s1 has no participant 'sub-3'; did you mean sub-03\?"):
        withdraw(home, "sub-3")
    assert not withdrawn_path(home).exists()
    assert not enrolment_path(home).exists()


def test_the_scan_is_not_opened_by_anything(home, study, tmp_path, monkeypatch):
    withdraw(home, PERSON)
    opened = Opened(monkeypatch)
    assert problems(home, study) == []
    enrol(home, home.settings.data, study, again=True)
    site_report(home, study)
    enrolment_path(home).unlink()
    call_roll(home, study)
    careful_home = careful(home)
    with pytest.raises(InputError, match="expects 6 subjects"):
        approve(careful_home, study)
    assert opened.of(home, "sub-02")
    assert opened.of(home, PERSON) == []


def test_a_run_after_a_withdrawal_counts_the_person_as_zero(home, study, tmp_path, monkeypatch):
    withdraw(home, PERSON)
    opened = Opened(monkeypatch)
    state = run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    assert state.complete
    assert opened.of(home, "sub-02")
    assert opened.of(home, PERSON) == []
    assert len(open_people(home, study)) == SIZES[0]
    assert (
        "the scans of 1 of 6 participants could not be read and counted as zero"
        in (home.folder / "site.log").read_text()
    )


class Withdrawing(Watcher):
    """Withdraws somebody's consent in the middle of a run, between two releases."""

    def __init__(self, home, opened, after):
        self._home, self._opened, self._left = home, opened, after

    def step(self, step):
        self._left -= 1
        if self._left == 0:
            assert self._opened.of(self._home, PERSON)
            withdraw(self._home, PERSON)
            self._opened.clear()


@pytest.mark.parametrize("after", [1, 4])
def test_a_run_under_way_forgets_the_person(home, study, tmp_path, monkeypatch, after):
    """The scans are read for the first mean and once for all others, so what is kept in memory counts."""
    opened, made = Opened(monkeypatch), []
    genuine = consents.Consenting.__call__

    def noting(self, stage, published, state):
        vectors = [np.array(batch) for batch in genuine(self, stage, published, state)]
        if self._home.folder == home.folder:
            made.append(np.concatenate(vectors))
        return vectors

    monkeypatch.setattr(consents.Consenting, "__call__", noting)
    watcher = Withdrawing(home, opened, after)
    state = run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run", watcher=watcher)
    assert state.complete
    assert opened.of(home, "sub-02")
    assert opened.of(home, PERSON) == []
    contributes = [bool(np.isfinite(rows[3]).all() and rows[3].any()) for rows in made]
    assert contributes == [True] * after + [False] * (len(made) - after)
    assert all(np.isfinite(rows[2]).all() and rows[2].any() for rows in made)


def test_nobody_is_read_if_the_list_cannot_be(home, study, monkeypatch):
    with home.open_ledger() as ledger:
        statistics = consents.Consenting(home, ledger, open_people(home, study), study.analysis.site)
        withdrawn_path(home).write_text("damaged")
        with pytest.raises(InputError, match="not valid TOML"):
            statistics(0, b"", b"")
    (found,) = problems(home, study)
    assert "withdrawn.toml is not valid TOML" in found


LOST = "lacks {} of the 2 withdrawals of consent noted in the ledger of site s1, so no data are read"


def test_nobody_is_read_if_the_list_was_lost(home, study, tmp_path, monkeypatch, capsys):
    """Be it before a run, in the middle of one, or only in part; until everybody is on it again."""
    home = careful(home)
    approve(home, study)
    with home.open_ledger() as ledger:
        statistics = consents.Consenting(home, ledger, open_people(home, study), study.analysis.site)
        for person in (PERSON, "sub-01"):
            withdraw(home, person)
        withdrawn_path(home).unlink()
        opened = Opened(monkeypatch)
        with pytest.raises(InputError, match=LOST.format(2)):
            statistics(0, b"", b"")
        with pytest.raises(InputError, match=LOST.format(2)):
            consents.Consenting(home, ledger, statistics.people, study.analysis.site)
    for reads in (
        lambda: approve(home, study),
        lambda: enrol(home, home.settings.data, study, again=True),
        lambda: open_people(home, study),
    ):
        with pytest.raises(InputError, match=LOST.format(2)):
            reads()
    (found,) = problems(home, study)
    assert "Restore the list from a backup, or run capedjica site withdraw again" in found
    assert opened.of(home, "sub-") == []
    done = run_main(["site", "withdraw", PERSON, str(home.folder)], monkeypatch, capsys)
    assert LOST.format(1) in done.stdout.replace("\n", " ")
    done = run_main(["site", "withdraw", "sub-01", str(home.folder)], monkeypatch, capsys)
    assert "no data are read" not in done.stdout.replace("\n", " ")
    assert [person.name for person in open_people(home, study).people if not person.recordings] == [
        "sub-01",
        PERSON,
    ]


def test_who_is_on_the_list_by_mistake_is_read_and_stays_counted(home, study):
    approve(home, study)
    withdraw(home, PERSON)
    withdraw(home, "sub-01")
    file = withdrawn_path(home)
    first, second, third = file.read_text().split("[[withdrawn]]")
    file.write_text(f"{first}[[withdrawn]]{second.rstrip()}\nby_mistake = true\n\n[[withdrawn]]{third}")
    assert list(read_withdrawn(home)) == ["sub-01"]
    assert call_roll(home, study).withdrawn == {"sub-01"}
    withdraw(home, "sub-05")
    assert list(read_withdrawn(home)) == ["sub-01", "sub-05"]
    assert "by_mistake = true" in file.read_text()
    older = file.read_text()
    withdraw(home, PERSON)
    assert set(read_withdrawn(home)) == {PERSON, "sub-01", "sub-05"}
    with home.open_ledger() as ledger:
        assert [text for text, _ in ledger.notes()] == [NOTE] * 4
    # An older list, from when it was a mistake, is noticed as well.
    file.write_text(older)
    with pytest.raises(InputError, match="lacks 1 of the 4"):
        read_withdrawn(home)
    withdraw(home, PERSON)
    assert set(read_withdrawn(home)) == {PERSON, "sub-01", "sub-05"}


def test_the_list_is_on_the_disk_before_anything_else_is_done(home, monkeypatch):
    """Its content before its name, and its name, in the folder, before a series is removed."""
    done, sync = [], os.fsync
    replace, purge = os.replace, SeriesCache.purge

    def noting_sync(handle):
        done.append(re.sub(r"\.[0-9a-f]{16}", "", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        sync(handle)

    def noting_replace(draft, target):
        done.append("renamed")
        replace(draft, target)

    def noting_purge(self):
        done.append("purged")
        return purge(self)

    enrol(home, home.settings.data, None)
    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(SeriesCache, "purge", noting_purge)
    withdraw(home, PERSON)
    assert done[:4] == [".withdrawn.toml.part", "renamed", home.folder.name, "purged"]


def test_what_was_made_of_the_scans_is_removed(home, study, tmp_path, monkeypatch, capsys):
    careful_home = careful(home)
    approve(careful_home, study)
    assert read_record(home, study).people[PERSON]
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    for command in ("results", "report"):
        done = run_main(
            ["site", command, str(tmp_path / "run"), "--site", str(home.folder)], monkeypatch, capsys
        )
        assert done.returncode == 0
    (folder,) = home.results_path.iterdir()
    assert (folder / PERSON).is_dir()
    home.cache_path.mkdir(exist_ok=True)
    (home.cache_path / f"{'0' * 64}.npy").write_bytes(b"series")
    done = run_main(["site", "withdraw", PERSON, str(home.folder)], monkeypatch, capsys)
    assert done.returncode == 0
    for words in (
        f"{PERSON} withdrew on 20",
        "Removed: 1 extracted series",
        "this participant's individual results of 1 study",
        "cannot be recalled, and results are not recomputed",
        "including this one, is at most epsilon ",
    ):
        assert words in done.stdout
    # It has finished, so there is nothing to be said of what it releases from now on.
    assert "has started" not in done.stdout
    assert "A study is running here" not in done.stdout
    assert not (folder / PERSON).exists()
    assert not (folder / "report.html").exists()
    assert (folder / "sub-02").is_dir()
    assert not list(home.cache_path.glob("*.npy"))
    assert read_record(home, study).people[PERSON] == {}
    assert read_record(home, study).people["sub-02"]
    for noted in home.approved_path.glob("*.over"):
        noted.unlink()
    done = run_main(["site", "withdraw", "sub-04", str(home.folder)], monkeypatch, capsys)
    assert "'A small study' has started" in done.stdout
    assert "counts as zero among the 6" in done.stdout
    # Results that are made again are made without.
    run_main(["site", "results", str(tmp_path / "run"), "--site", str(home.folder)], monkeypatch, capsys)
    assert not (folder / PERSON).exists()


@pytest.mark.parametrize("killed", [False, True])
def test_results_that_are_being_written_are_removed_too(home, study, tmp_path, monkeypatch, killed):
    """Somebody withdraws while their own are written; or while they are, and the process is killed then."""
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    genuine = individual.individual_files

    def withdrawing(label, *others):
        files = list(genuine(label, *others))
        if label == PERSON:
            yield files[0]
            withdraw(home, PERSON)
        yield from files

    monkeypatch.setattr(individual, "individual_files", withdrawing)
    if killed:
        with monkeypatch.context() as dying:
            dying.setattr(individual.shutil, "rmtree", lambda *_, **__: None)
            individual.write_local_results(tmp_path / "run", home)
        (folder,) = home.results_path.iterdir()
        assert (folder / PERSON).is_dir()
    done = individual.write_local_results(tmp_path / "run", home)
    # Their scans are not said to be unusable.
    assert done.unusable == ()
    assert (done.written, done.kept) == ((0, 5) if killed else (5, 0))
    assert sorted(path.name for path in done.folder.glob("*sub-*")) == [
        f"sub-{n:02d}" for n in range(6) if n != 3
    ]


def test_the_ledger_shows_that_and_not_who(home, study, tmp_path):
    """Also one that was begun by the withdrawal."""
    withdraw(home, "sub-05")
    approve(home, study)
    for _ in range(2):
        withdraw(home, PERSON)
    with home.open_ledger() as ledger:
        notes = ledger.notes()
        assert [text for text, _ in notes] == [NOTE, NOTE]
        ledger.verify_chain()
        ledger.export(tmp_path / "ledger.json", messages=True)
    shown = home.ledger_path.read_bytes() + (tmp_path / "ledger.json").read_bytes()
    for secret in (b"sub-0", *(mark for _, mark in notes), *(mark.hex().encode() for _, mark in notes)):
        assert secret not in shown


def test_another_name_does_not_stand_in_for_one_that_was_lost(home, study):
    withdraw(home, PERSON)
    withdrawn_path(home).unlink()
    withdraw(home, "sub-01")
    with pytest.raises(InputError, match="lacks 1 of the 2"):
        enrol(home, home.settings.data, study, again=True)
    withdraw(home, PERSON)
    assert set(read_withdrawn(home)) == {PERSON, "sub-01"}


def test_a_withdrawal_that_was_killed_is_noted_by_the_next_run(home, study):
    """Here before the ledger could note it."""
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(withdrawal, "note_withdrawn", lambda *_: None)
        withdraw(home, PERSON)
    with home.open_ledger() as ledger:
        assert ledger.notes() == []
        consents.Consenting(home, ledger, open_people(home, study), study.analysis.site)
        assert [text for text, _ in ledger.notes()] == [NOTE]
    withdrawn_path(home).unlink()
    with pytest.raises(InputError, match="no data are read"):
        open_people(home, study)


def test_it_is_noted_though_results_cannot_be_removed(home, monkeypatch):
    def refuse(*_):
        raise InputError("cannot be removed")

    monkeypatch.setattr(withdrawal, "_remove_results", refuse)
    with pytest.raises(InputError, match="cannot be removed"):
        withdraw(home, PERSON)
    with home.open_ledger() as ledger:
        assert [text for text, _ in ledger.notes()] == [NOTE]


def test_an_approved_study_goes_on_with_the_number_agreed(home, study):
    home = careful(home)
    approve(home, study)
    done = withdraw(home, PERSON)
    (words,) = done.studies
    assert words.startswith(
        "'A small study' was approved for 6 participants here and has not started: it can run"
    )
    # Also when the scan is removed: the list of people was fixed.
    (home.data_path / f"{PERSON}.npy").unlink()
    assert problems(home, study) == []
    assert len(read_enrolment(home).enrolled) == 6
    facts = site_report(home, study)
    assert facts["enrolment"]["withdrawn"] == [PERSON]
    assert facts["enrolment"]["missing"] == []
    msgspec.json.encode(facts)


def test_nobody_enrols_the_person_again(home, study):
    withdraw(home, PERSON)
    enrolment = enrol(home, home.settings.data, study, again=True)
    assert PERSON not in enrolment.enrolled
    assert len(enrolment.enrolled) == 5
    (left_out,) = enrolment.left_out
    assert left_out.name == PERSON
    assert "withdrew consent on 20" in left_out.reasons[0]
    assert withdraw(home, PERSON).studies == ()


def test_a_study_that_runs_is_told(home, study, monkeypatch, capsys):
    approve(home, study)
    with taking_part(home, study):
        done = run_main(["site", "withdraw", PERSON, str(home.folder)], monkeypatch, capsys)
    assert "A study is running here: a release that is being computed now may be the last" in done.stdout
