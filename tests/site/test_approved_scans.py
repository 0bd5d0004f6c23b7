"""What was approved is what is read: a scan that changes before a study begins is noticed, later never."""

import io
import json
import os
import re
import shutil
from collections import Counter

import msgspec
import numpy as np
import pytest
from rich.console import Console

from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy.charges import Cap
from capedjica.site.approval.admission import Scans, problems, why_not
from capedjica.site.approval.participation import approve
from capedjica.site.check import show_terms, site_report
from capedjica.site.home import SiteHome
from capedjica.site.participants import approved_scans
from capedjica.site.participants.approved_scans import read_record, record_path
from capedjica.site.participants.cohort import enrol, open_people
from tests.support.small_study import SIDE, changed, make_study

AGAIN = "to use the current data, approve the study again"


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_study(tmp_path, simulated=False)


@pytest.fixture
def home(study, tmp_path):
    home = SiteHome.load(tmp_path / "sites" / "s1")
    approve(home, study)
    return home


@pytest.fixture
def read(monkeypatch):
    """Count the files whose content is looked at."""
    read, digest = Counter(), approved_scans._digest

    def counted(path):
        read[path.name] += 1
        return digest(path)

    monkeypatch.setattr(approved_scans, "_digest", counted)
    return read


def changed_since_approval(home, study):
    found = why_not(home, study, Scans(home, study, read=False))
    return [reason.words for reason in found if reason.kind == "record"]


def scan(seed):
    return np.random.default_rng(seed).standard_normal((60, SIDE * SIDE)).astype(np.float32)


def test_the_record_is_the_sites_own(home, study):
    file = record_path(home, study)
    assert file.parent == home.approved_path
    assert file.stat().st_mode & 0o777 == 0o600
    record = read_record(home, study)
    assert list(record.people) == [f"sub-{number:02d}" for number in range(6)]
    state = record.people["sub-03"]["sub-03.npy"]
    assert state.size == (home.data_path / "sub-03.npy").stat().st_size
    assert changed_since_approval(home, study) == []
    assert problems(home, study) == []


@pytest.mark.parametrize("enrolled", [False, True])
def test_scans_that_changed_are_told_until_they_are_approved(home, study, enrolled):
    if enrolled:
        enrol(home, home.settings.data, study)
        approve(home, study)
    np.save(home.data_path / "sub-01.npy", scan(1))
    np.save(home.data_path / "sub-04.npy", scan(2))
    words = (
        f"the data of 2 of 6 participants changed since the study was approved; the first is sub-01; {AGAIN}"
    )
    assert changed_since_approval(home, study) == [words]
    assert problems(home, study) == [f"site s1: {words}"]
    assert site_report(home, study)["obstacles"] == [words]
    approve(home, study)
    assert changed_since_approval(home, study) == []
    assert problems(home, study) == []


def test_a_change_of_the_same_size_and_a_touch_are_told_apart(home, study, read):
    """A file of another time of change is read; one of the same is not, and another size is enough."""
    file = home.data_path / "sub-02.npy"
    os.utime(file)
    assert changed_since_approval(home, study) == []
    assert read == {"sub-02.npy": 1}
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "the first is sub-02" in changed_since_approval(home, study)[0]
    assert read == {"sub-02.npy": 2}
    file.write_bytes(content + b"more")
    assert "the first is sub-02" in changed_since_approval(home, study)[0]
    assert read == {"sub-02.npy": 2}


def test_what_one_approval_read_the_next_need_not(home, study, tmp_path, read):
    os.utime(home.data_path / "sub-05.npy")
    approve(home, study)
    assert read == {"sub-05.npy": 1}
    approve(home, changed(study, tmp_path / "other.toml", title="Another study"))
    assert read == {"sub-05.npy": 1}


def test_people_who_come_and_go(home, study):
    np.save(home.data_path / "sub-99.npy", scan(3))
    (home.data_path / "sub-00.npy").unlink()
    (found,) = changed_since_approval(home, study)
    assert "the participants changed since the study was approved (1 new, 1 missing)" in found
    assert found.endswith(AGAIN)


def test_somebody_enrolled_who_vanished_is_approved_as_missing(home, study):
    enrol(home, home.settings.data, study)
    approve(home, study)
    (home.data_path / "sub-02.npy").unlink()
    assert "the data of 1 of 6 participants changed" in changed_since_approval(home, study)[0]
    approve(home, study)
    assert changed_since_approval(home, study) == []
    assert read_record(home, study).people["sub-02"] == {}


def test_whatever_has_a_say_in_a_series_counts(home, study):
    """BIDS keeps the repetition time in a file of its own."""
    (home.data_path / "sub-02.json").write_text('{"RepetitionTime": 2.0}')
    (found,) = changed_since_approval(home, study)
    assert "the first is sub-02" in found
    approve(home, study)
    assert set(read_record(home, study).people["sub-02"]) == {"sub-02.npy", "sub-02.json"}


def test_a_folder_that_was_moved_holds_the_same_scans(home, study, tmp_path):
    shutil.move(home.data_path, tmp_path / "elsewhere")
    settings = home.folder / "site.toml"
    settings.write_text(settings.read_text().replace('path = "data"', f'path = "{tmp_path / "elsewhere"}"'))
    moved = SiteHome.load(home.folder)
    assert moved.data_path == tmp_path / "elsewhere"
    assert changed_since_approval(moved, study) == []


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 9, "when": "", "people": {}}', None])
def test_without_a_record_a_study_is_to_be_approved_again(home, study, damage):
    file = record_path(home, study)
    file.unlink() if damage is None else file.write_bytes(damage)
    (found,) = changed_since_approval(home, study)
    assert found.startswith("the record of the data approved for 'A small study' is missing or malformed")
    approve(home, study)
    assert changed_since_approval(home, study) == []


def test_a_study_is_not_approved_for_scans_that_are_not_there(study, tmp_path):
    home = SiteHome.load(tmp_path / "sites" / "s2")
    (home.data_path / "sub-00.npy").unlink()
    with pytest.raises(InputError, match=r"cannot approve 'A small study': the study expects 9 subjects"):
        approve(home, study)
    shutil.rmtree(home.data_path)
    with pytest.raises(InputError, match="expected a folder with scans"):
        approve(home, study)
    assert not home.ledger_path.exists()
    assert not home.approved_path.exists()


def test_names_of_files_that_are_no_text(home, study):
    odd = os.fsdecode(b"sub-05_\xff.npy")
    (home.data_path / "sub-05.npy").rename(home.data_path / odd)
    assert "the first is sub-05" in changed_since_approval(home, study)[0]
    approve(home, study)
    assert changed_since_approval(home, study) == []
    (last,) = open_people(home, study).people[-1].recordings
    assert last.path == home.data_path / odd
    assert last.path.exists()


def test_a_run_begins_only_with_the_scans_that_were_approved(study, tmp_path):
    homes = find_sites(study, tmp_path / "sites")
    for home in homes:
        approve(home, study)
    np.save(homes[1].data_path / "sub-03.npy", scan(4))
    with pytest.raises(InputError, match=r"cannot be run; nothing was spent: site s2: the data of 1 of 9"):
        run_study(study, homes, tmp_path / "run")
    assert all(home.totals().overall.n_releases == 0 for home in homes)


def test_once_begun_nothing_depends_on_what_becomes_of_a_scan(study, tmp_path):
    homes = find_sites(study, tmp_path / "sites")
    for home in homes:
        approve(home, study)
    assert run_study(study, homes, tmp_path / "run").complete
    before = [read_record(home, study) for home in homes]
    approve(homes[0], study)  # in the same words, and nothing changed
    np.save(homes[0].data_path / "sub-03.npy", scan(4))
    assert changed_since_approval(homes[0], study) == []
    assert problems(homes[0], study) == []
    with pytest.raises(
        InputError,
        match=r"cannot approve 'A small study' again, as it has started: the data of 1 of 6 participants",
    ):
        approve(homes[0], study)
    assert [read_record(home, study) for home in homes] == before
    approval = site_report(homes[0], study)["approval"]
    assert (approval["approved"], approval["changed"]) == (True, [])
    assert approval["releases"] > 0


def test_a_site_that_approves_by_itself_takes_scans_as_they_are(tmp_path):
    study = make_study(tmp_path)
    home = SiteHome.load(tmp_path / "sites" / "s1")
    approve(home, study)
    assert not record_path(home, study).exists()
    np.save(home.data_path / "sub-03.npy", scan(4))
    assert problems(home, study) == []


@pytest.mark.parametrize(
    ("allowed", "words"), [(12.0, "could then spend epsilon"), (10.0, "Almost nothing would be left")]
)
def test_what_is_left_afterwards_is_never_overstated(study, tmp_path, allowed, words):
    """A later study of that epsilon fits into the total, to the ledger's own arithmetic."""
    home = SiteHome.load(tmp_path / "sites" / "s1")
    settings = home.folder / "site.toml"
    settings.write_text(settings.read_text().replace("total_epsilon = 50.0", f"total_epsilon = {allowed}"))
    home = SiteHome.load(home.folder)
    out = io.StringIO()
    show_terms(home, study, Console(file=out, width=80))
    text = " ".join(out.getvalue().split())
    assert words in text
    left = re.search(r"could then spend epsilon ([\d.]+)", text)
    if left:
        total, cap = home.policy.total, study.contract.cap("s1")
        assert cap.mu2 + Cap(float(left[1]), 1e-5).mu2 <= total.mu2
        assert cap.mu2 + Cap(float(left[1]) * 1.001, 1e-5).mu2 > total.mu2
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_more_than_is_left_is_said(study, tmp_path):
    home = SiteHome.load(tmp_path / "sites" / "s1")
    settings = home.folder / "site.toml"
    settings.write_text(settings.read_text().replace("total_epsilon = 50.0", "total_epsilon = 9.0"))
    out = io.StringIO()
    show_terms(SiteHome.load(home.folder), study, Console(file=out, width=80))
    assert "That is more than the site allows: a run would be refused." in " ".join(out.getvalue().split())


def test_the_record_holds_names_and_hashes_and_no_number_of_a_scan(home, study):
    record = json.loads(record_path(home, study).read_bytes())
    assert set(record) == {"schema", "when", "people"}
    assert msgspec.convert(record, approved_scans.ApprovedScans) == read_record(home, study)
