"""Covariates at a site: approved with the scans, told to the site alone, and never in the way of a run."""

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from capedjica.algorithms.state import pack
from capedjica.cli import app
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.admission import Scans, why_not
from capedjica.site.approval.participation import approve
from capedjica.site.consent.consents import consenting
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import approved_people, differences, read_record
from capedjica.site.participants.cohort import call_roll, look, open_people
from capedjica.site.run import _Watched
from tests.support.kinds import make_kind

KIND = "networks, then groups"


@pytest.fixture
def study(tmp_path):
    return make_kind(tmp_path, KIND)


@pytest.fixture
def home(tmp_path, study):
    return SiteHome.load(tmp_path / "sites" / "s1")


def by_hand(home):
    """A site that approves by hand keeps a record."""
    settings = home.folder / "site.toml"
    settings.write_text(settings.read_text().replace("auto_approve = true", "auto_approve = false"))
    return SiteHome.load(home.folder)


def rewrite(home, old, new, count=-1):
    file = home.data_path / "participants.tsv"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, count))


def test_rows_are_part_of_what_is_approved(home, study):
    home = by_hand(home)
    approve(home, study)
    record = read_record(home, study)
    assert all(files["participants.tsv"].row for files in record.people.values())
    people = approved_people(home, study)
    assert [person.covariates.row for person in people] == [person.name for person in people]
    assert all(recording.row is None for person in people for recording in person.recordings)
    assert open_people(home, study).covariates(0)["participant_id"] == "sub-00"
    assert differences(home, record, call_roll(home, study).people) == []


def test_a_row_that_changed_needs_another_approval(home, study):
    """That of one person alone: the table serves everybody."""
    home = by_hand(home)
    approve(home, study)
    line = (home.data_path / "participants.tsv").read_text().splitlines()[1]
    rewrite(home, line, line[:-1] + str(1 - int(line[-1])))
    found = differences(home, read_record(home, study), call_roll(home, study).people)
    assert len(found) == 1
    assert found[0].startswith("the data of 1 of 6 participants changed")


def test_studies_that_compare_nobody_do_not_look_at_the_table(tmp_path):
    other = make_kind(tmp_path, "ica")
    home = by_hand(SiteHome.load(tmp_path / "sites" / "s1"))
    (home.data_path / "participants.tsv").write_text("participant_id\nsub-00\n")
    approve(home, other)
    assert all("participants.tsv" not in files for files in read_record(home, other).people.values())
    assert all(person.covariates is None for person in approved_people(home, other))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\tdx", "\tdiagnosis", "no columns 'dx'"),
        ("participant_id", "who", "participants.tsv"),
    ],
)
def test_a_column_that_is_missing_is_in_the_way_and_nothing_is_spent(home, study, old, new, words):
    rewrite(home, old, new, 1)
    found = [reason.words for reason in why_not(home, study, Scans(home, study))]
    assert any(words in one for one in found), found
    shown = CliRunner().invoke(app, ["site", "check", str(home.folder), "--study", str(study.folder)])
    assert shown.exit_code != 0
    assert words in shown.output
    assert home.totals() is None


def test_an_undeclared_level_is_said_at_the_check(home, study):
    line = (home.data_path / "participants.tsv").read_text().splitlines()[1]
    rewrite(home, line, line[:-1] + "unknown")
    found = [reason.words for reason in why_not(home, study, Scans(home, study))]
    assert any("dx 'unknown' (sub-00); expected 0 or 1" in one for one in found), found


def test_properties_of_the_data_are_notes_for_the_site_alone(home, study):
    """A contrast that never varies, values out of range or missing keep nobody from taking part."""
    rows = ["participant_id\tage\tvolume\tdx", *(f"sub-{n:02d}\t{10 * n}\t1\t1" for n in range(5))]
    (home.data_path / "participants.tsv").write_text("\n".join(rows) + "\n")
    problems = look(home, list(call_roll(home, study).people), study)
    said = " ".join(map(str, problems))
    assert not any(problem.fatal for problem in problems)
    assert "dx is the same for all participants" in said
    assert "age 0 (sub-00)" in said
    assert "no row of sub-05" in said
    assert why_not(home, study, Scans(home, study)) == []


def test_a_table_that_vanishes_makes_everybody_zero(home, study):
    """The site's vectors have the declared shape and hold nothing; nobody is told."""
    people = open_people(home, study)
    (home.data_path / "participants.tsv").unlink()
    subjects = _Watched(people, "s1", lambda: None)
    statistics = study.steps[1].analysis.site(subjects)
    networks = pack(unmixing=np.random.default_rng(0).standard_normal((3, 6)))
    (rows,) = statistics(0, msgspec.msgpack.encode((networks, b"")), b"")
    assert rows.shape == (len(people), study.steps[1].analysis.stages()[0].query.size)
    assert not np.nan_to_num(rows).any()


def test_who_withdrew_has_no_covariates(home, study):
    people = consenting(home, call_roll(home, study).people, study.features, ["sub-00"])
    assert people.covariates(0) == {}
    assert people.covariates(1)


@pytest.mark.full
def test_missing_rows_do_not_stop_a_run(tmp_path, study):
    for number in (1, 2):
        file = tmp_path / "sites" / f"s{number}" / "data" / "participants.tsv"
        file.write_text("\n".join(file.read_text().splitlines()[:3]) + "\n")
    assert run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run").complete
