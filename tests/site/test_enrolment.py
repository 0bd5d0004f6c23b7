"""Who takes part: chosen once, before a study, by the site itself, and then kept whatever happens."""

import json
import os
import re

import msgspec
import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study, site_of_folder
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import affected, approve
from capedjica.site.check import site_report
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import call_roll, enrol, open_people
from capedjica.site.participants.enrolment import enrolment_path, read_enrolment
from capedjica.study.study_file import Study, write_study
from tests.support.small_study import SIDE, SIZES, make_study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def home(study, tmp_path):
    return SiteHome.load(tmp_path / "sites" / "s1")


def spoil(home):
    """Make two of six scans unusable."""
    (home.data_path / "sub-01.npy").write_bytes(b"nothing")
    np.save(home.data_path / "sub-04.npy", np.full((60, SIDE * SIDE), np.nan))


def for_fewer(study, path, subjects):
    """The same study with another number of people at the first site."""
    first = msgspec.structs.replace(study.content.sites[0], subjects=subjects)
    write_study(
        path,
        msgspec.structs.replace(study.content, title="Fewer", sites=(first, *study.content.sites[1:])),
    )
    return Study.load(path)


def test_bad_scans_are_left_out_with_reasons_that_stay_here(home, study):
    spoil(home)
    ticks = []
    enrolment = enrol(home, home.settings.data, study, tick=lambda: ticks.append(1))
    assert enrolment.enrolled == ("sub-00", "sub-02", "sub-03", "sub-05")
    assert [one.name for one in enrolment.left_out] == ["sub-01", "sub-04"]
    assert "not a NumPy array" in enrolment.left_out[0].reasons[0]
    assert "NaN" in enrolment.left_out[1].reasons[0]
    assert len(ticks) == 6
    file = enrolment_path(home)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_enrolment(home) == enrolment
    assert enrolment.study == study.content.title
    text = file.read_text()
    assert "# 4 participants." in text
    assert re.search(r'\[\[left_out\]\]\nname = "sub-01"', text)
    assert not [name for name in os.listdir(home.folder) if name.endswith(".part")]


def test_exactly_those_enrolled_take_part(home, study, tmp_path):
    spoil(home)
    enrol(home, home.settings.data, study)
    np.save(home.data_path / "sub-99.npy", np.random.default_rng(0).standard_normal((60, SIDE * SIDE)))
    people = open_people(home, study)
    assert people.names == ["sub-00", "sub-02", "sub-03", "sub-05"]
    assert site_of_folder(str(home.folder), None).subjects == 4
    (found,) = problems(home, study)
    assert found.startswith("site s1: the study expects 6 subjects, but this site enrolled 4")
    with pytest.raises(InputError, match="cannot approve 'A small study': the study expects 6 subjects"):
        approve(home, study)
    fewer = for_fewer(study, tmp_path / "fewer.toml", 4)
    assert problems(home, fewer) == []


def test_somebody_who_vanishes_counts_as_zero_and_stays_enrolled(home, study, tmp_path):
    enrol(home, home.settings.data, study)
    (home.data_path / "sub-02.npy").unlink()
    (home.data_path / "sub-03.npy").write_bytes(b"")
    roll = call_roll(home, study)
    assert roll.missing == ["sub-02"]
    people = open_people(home, study)
    assert len(people) == SIZES[0]
    assert [len(scan) == 0 for scan in people] == [False, False, True, True, False, False]
    assert problems(home, study) == []
    state = run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    assert state.complete
    log = (home.folder / "site.log").read_text()
    assert "the scans of 2 of 6 participants could not be read" in log
    assert "sub-02" not in log
    facts = site_report(home, study)
    assert facts["enrolment"]["missing"] == ["sub-02"]
    assert [found["person"] for found in facts["problems"] if found["fatal"]] == ["sub-03"]


def test_without_an_enrolment_a_bad_scan_is_in_the_way(home, study):
    spoil(home)
    found = problems(home, study)
    assert len(found) == 2
    assert "sub-01.npy" in found[0]


def test_a_folder_that_is_gone_is_in_the_way_all_the_same(home, study):
    enrol(home, home.settings.data, study)
    for file in home.data_path.iterdir():
        file.write_bytes(b"")
    (found,) = problems(home, study)
    assert "none of its 6 enrolled participants is usable; the first reason:" in found
    for file in home.data_path.iterdir():
        file.unlink()
    (found,) = problems(home, study)
    assert "contains no .npy" in found
    assert site_report(home, study)["obstacles"] == [found.removeprefix("site s1: ")]


def test_people_are_enrolled_again_only_when_asked(home, study):
    first = enrol(home, home.settings.data, None)
    before = enrolment_path(home).read_bytes()
    with pytest.raises(InputError, match=r"site s1 already has an enrolment .*replace it with --again"):
        enrol(home, home.settings.data, study)
    assert enrolment_path(home).read_bytes() == before
    spoil(home)
    second = enrol(home, home.settings.data, study, again=True)
    assert len(second.enrolled) == 4
    assert read_enrolment(home) == second
    assert first.study is None


def test_studies_that_were_approved_before_are_named(home, study):
    approve(home, study)
    first = enrol(home, home.settings.data, study)
    assert affected(home, None, first) == []
    spoil(home)
    second = enrol(home, home.settings.data, study, again=True)
    (words,) = affected(home, first, second)
    assert words.startswith("'A small study' was approved for 6 participants here, not 4: it cannot run")
    swapped = msgspec.structs.replace(first, enrolled=(*first.enrolled[:5], "another"))
    (words,) = affected(home, first, swapped)
    assert "was approved with a different list of participants" in words


def test_a_selection_by_name(home, study):
    chosen = msgspec.structs.replace(home.settings.data, participants=("03", "sub-05"))
    assert enrol(home, chosen, study).enrolled == ("sub-03", "sub-05")
    (home.data_path / "sub-03.npy").unlink()
    assert call_roll(home, study).missing == ["sub-03"]


def test_nobody_left(home, study):
    for file in home.data_path.iterdir():
        file.write_bytes(b"")
    with pytest.raises(
        InputError, match=r"no participant of site s1 can be enrolled; the first reason: .*empty file"
    ):
        enrol(home, home.settings.data, study)
    assert not enrolment_path(home).exists()


def test_without_a_study_tables_must_agree_with_each_other(home):
    np.save(home.data_path / "sub-03.npy", np.ones((60, 7)))
    enrolment = enrol(home, home.settings.data, None)
    assert [one.name for one in enrolment.left_out] == ["sub-03"]
    assert "7 features" in enrolment.left_out[0].reasons[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("schema = 1", "schema = 9"), "schema must be 1, got 9"),
        (lambda text: text.replace('    "sub-03",\n', '    "sub-02",\n'), "and each only once"),
        (
            lambda text: re.sub(r"enrolled = \[.*?\]", "enrolled = []", text, flags=re.DOTALL),
            "at least one participant",
        ),
        (lambda text: "[", "is not valid TOML"),
        (lambda text: text.replace("when", "wen"), "did you mean when"),
    ],
)
def test_a_list_that_was_damaged_is_refused(home, study, change, message):
    enrol(home, home.settings.data, study)
    file = enrolment_path(home)
    file.write_text(change(file.read_text()))
    with pytest.raises(InputError, match=message):
        call_roll(home)
    assert message in problems(home, study)[0]


def test_any_name_is_read_back(home, study):
    odd = ['a "quoted" one', "tab\tand\nline", "脳", "x = 1 # no comment", "''"]
    for name in odd:
        np.save(home.data_path / f"{name}.npy", np.random.default_rng(1).standard_normal((60, SIDE * SIDE)))
    # Copies of each other are not let in twice.
    enrolment = enrol(home, home.settings.data, study)
    assert read_enrolment(home) == enrolment
    assert sum(one.name in odd for one in enrolment.left_out) == len(odd) - 1


def test_a_name_that_is_no_text_is_refused_in_words(home, study):
    odd = os.fsdecode(b"sub-\xff.npy")
    np.save(home.data_path / odd, np.random.default_rng(1).standard_normal((60, SIDE * SIDE)))
    with pytest.raises(InputError, match=r"names of scans are not valid UTF-8"):
        enrol(home, home.settings.data, study)
    assert not enrolment_path(home).exists()


def test_the_list_is_not_written_by_halves(home, study, monkeypatch):
    first = enrol(home, home.settings.data, study)
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match=r"enrolled\.toml cannot be written: No space left"):
        enrol(home, home.settings.data, study, again=True)
    assert read_enrolment(home) == first


def test_the_report_is_plain_values(home, study):
    enrol(home, home.settings.data, study)
    assert json.loads(json.dumps(site_report(home, study)))["enrolment"]["people"] == 6
