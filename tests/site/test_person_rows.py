"""A site whose people are rows of one table: looked at, enrolled, approved, withdrawn and read."""

import io

import msgspec
import pytest
from numpy.testing import assert_array_equal
from rich.console import Console

from capedjica.data import FeatureTable
from capedjica.errors import InputError
from capedjica.one_machine.local_run import run_study
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve
from capedjica.site.check import show_site, site_report
from capedjica.site.consent.withdrawal import withdraw
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import read_record
from capedjica.site.participants.cohort import enrol, open_people
from capedjica.site.results.individual import write_local_results
from capedjica.study.analyses.tabular import MeanTable, RegressionTable
from capedjica.study.study_file import PrivacyTable, SiteTable, Study, StudyFile, write_study
from tests.site.test_approved_scans import changed_since_approval
from tests.site.test_settled import begin
from tests.support.in_process import run_main

COLUMNS = ("age", "volume", "score")
AGAIN = "to use the current data, approve the study again"
PEOPLE = [f"sub-{number:02d}" for number in range(6)]
ROWS = FeatureTable(kind="table", columns=COLUMNS)


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Three sites with the same people in their tables."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    names = ("s1", "s2", "s3")
    made = [SiteHome.create(tmp_path / "sites" / name, name, 50.0, 20.0, 1e-5) for name in names]
    for home in made:
        home.data_path.mkdir()
        write(home)
    return made


@pytest.fixture
def study(homes, tmp_path):
    """A study of three columns of these tables."""
    content = StudyFile(
        title="Rows of tables",
        features=ROWS,
        analyses=(MeanTable(clip=10_000.0),),
        privacy=PrivacyTable(epsilon=10.0),
        sites=tuple(
            SiteTable(name=home.settings.name, subjects=len(PEOPLE), card=home.card().card) for home in homes
        ),
    )
    write_study(tmp_path / "study.toml", content)
    return Study.load(tmp_path)


@pytest.fixture
def home(homes):
    return homes[0]


@pytest.mark.parametrize("kind", ["auto", "table"])
def test_a_table_may_be_named_itself(home, study, kind):
    """Others beside it, and letters that mean something in patterns, are no matter."""
    table = home.data_path / "people [1].tsv"
    (home.data_path / "participants.tsv").rename(table)
    (home.data_path / "other.tsv").write_text("1\t2\n")
    data = msgspec.structs.replace(home.settings.data, path=str(table), kind=kind)
    home = SiteHome(home.folder, msgspec.structs.replace(home.settings, data=data))
    approve(home, study)
    assert problems(home, study) == []
    assert site_report(home, study)["data"]["kind"] == "table"
    assert_array_equal(open_people(home, study)[2], [[32.0, 2001.0, -2.0]])
    begin(home, study)
    assert problems(home, study) == []
    table.unlink()
    (words,) = problems(home, study)
    assert words.endswith("people [1].tsv is not a folder; expected a folder with scans")


def rows():
    return {name: [30 + number, 1000.5 * number, -number, "patient"] for number, name in enumerate(PEOPLE)}


def write(home, table=None):
    lines = [["participant_id", *COLUMNS, "group"]]
    lines += [[name, *cells] for name, cells in (table or rows()).items()]
    content = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    (home.data_path / "participants.tsv").write_text(content)


def test_a_study_of_columns_is_written_and_read(study, tmp_path):
    text = (tmp_path / "study.toml").read_text()
    assert 'kind = "table"' in text
    assert 'columns = ["age", "volume", "score"]' in text
    assert study.features.columns == COLUMNS
    other = msgspec.structs.replace(
        study.content, features=FeatureTable(kind="table", columns=(*COLUMNS[:2], "group"))
    )
    assert Study(other).hash != study.hash


def test_a_site_with_a_table_from_its_first_day(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        return run_main(["site", *map(str, arguments)], monkeypatch, capsys)

    folder, data = tmp_path / "new", tmp_path / "data"
    data.mkdir()
    (data / "people.csv").write_text("participant_id,age\n1,30\n2,40\n2,41\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run("init", "new", "--folder", folder, "--data", data, "--kind", "table").returncode == 0
    assert SiteHome.load(folder).settings.data.kind == "table"
    checked = run("check", folder)
    assert checked.returncode == 2
    assert "one table with a row per participant. 2 participants, 2 columns in each row." in checked.stdout
    assert checked.stdout.count("sub-2 in 2 rows (lines 3, 4); expected one row per participant") == 1
    enrolled = run("enrol", folder)
    assert enrolled.returncode == 0
    assert "Site new enrolled 1 participant:" in enrolled.stdout
    assert run("check", folder).returncode == 0


def test_what_is_wrong_is_told_once(home, study):
    table = rows()
    table["sub-01"][0] = "n/a"
    write(home, table)
    facts = site_report(home, study)
    assert [(one["person"], one["fatal"]) for one in facts["problems"]] == [("sub-01", True)]
    assert "'n/a' in line 3 (sub-01), column 'age'; expected a finite number" in facts["problems"][0]["what"]
    (home.data_path / "participants.tsv").write_text(
        "participant_id\tage\n" + "".join(f"{name}\t1\n" for name in PEOPLE)
    )
    facts = site_report(home, study)
    assert len(facts["problems"]) == 2 * len(PEOPLE)
    assert "\n".join(shown(facts)).count("no columns 'volume'") == 1


def shown(facts):
    console = Console(file=io.StringIO(), width=200)
    show_site(facts, console)
    return console.file.getvalue().splitlines()


def test_a_column_of_words_is_told_in_one_line(home, study):
    write(home, {name: ["old", *cells[1:]] for name, cells in rows().items()})
    facts = site_report(home, study)
    assert len(facts["problems"]) == len(PEOPLE)
    told = "'old' in line 2 (sub-00), column 'age'; expected a finite number (and 5 more like this)"
    assert [line.endswith(told) for line in shown(facts) if "'old'" in line] == [True]
    assert [words.endswith(told) for words in facts["obstacles"] if "'old'" in words] == [True]
    write(home, {name: ["old", "large", *cells[2:]] for name, cells in rows().items()})
    told = [words for words in site_report(home, study)["obstacles"] if "a finite number" in words]
    assert ["column 'age'" in words for words in told] == [True, False]


def test_labels_and_rows_that_count_for_less_are_told_to_the_site_alone(home, study):
    """Labels of 1 and 2 in place of 0 and 1: half of the people would count as zero."""
    regression = RegressionTable(label="score", feature_bound=1500.0)
    study = Study(msgspec.structs.replace(study.content, analyses=(regression,)))
    table = rows()
    for number, cells in enumerate(table.values()):
        cells[2] = 1 + number % 2
    write(home, table)
    approve(home, study)
    assert problems(home, study) == []
    facts = site_report(home, study)
    assert facts["obstacles"] == []
    notes = [line for line in shown(facts) if line.startswith("  note: ")]
    table = home.data_path / "participants.tsv"
    assert notes == [
        f"  note: {table}: label 2 (sub-01); expected 0 or 1 in column 'score'; other rows count as the zero "
        "vector (and 2 more like this)",
        f"  note: {table}: row of norm 2001 (sub-02); expected at most 1500 (feature_bound); "
        "longer rows are clipped (and 3 more like this)",
    ]
    assert enrol(home, home.settings.data, study).enrolled == tuple(PEOPLE)


def test_approved_people_are_read_by_their_rows(home, study):
    approve(home, study)
    assert problems(home, study) == []
    record = read_record(home, study)
    assert list(record.people) == PEOPLE
    states = [files["participants.tsv"] for files in record.people.values()]
    assert all(state.row for state in states)
    assert len({state.sha256 for state in states}) == len(PEOPLE)
    people = open_people(home, study)
    assert people.names == PEOPLE
    assert_array_equal(people[2], [[32.0, 2001.0, -2.0]])


def test_only_those_whose_rows_changed_are_told(home, study):
    approve(home, study)
    enrol(home, home.settings.data, study)
    approve(home, study)
    table = rows() | {"sub-99": [1, 2, 3, "control"]}
    write(home, table)
    assert changed_since_approval(home, study) == []
    table["sub-04"][1] = 77
    write(home, table)
    (words,) = changed_since_approval(home, study)
    assert words == (
        f"the data of 1 of 6 participants changed since the study was approved; the first is sub-04; {AGAIN}"
    )
    approve(home, study)
    assert problems(home, study) == []
    write(home, {name: cells for name, cells in table.items() if name != "sub-02"})
    assert "the data of 1 of 6 participants changed" in changed_since_approval(home, study)[0]


def test_somebody_who_came_later_is_not_read(home, study):
    approve(home, study)
    write(home, {"sub-000": [1, 2, 3, "new"]} | rows())
    assert "1 new, 0 missing" in changed_since_approval(home, study)[0]
    people = open_people(home, study)
    assert people.names == PEOPLE
    assert_array_equal(people[0], [[30.0, 0.0, 0.0]])


def test_after_the_first_release_a_row_is_read_as_it_is(home, study):
    approve(home, study)
    begin(home, study)
    table = rows()
    table["sub-01"][2], table["sub-03"][0] = 55, "?"
    del table["sub-05"]
    write(home, table)
    with (home.data_path / "participants.tsv").open("a") as file:
        file.write("sub-00\t1\t1\t1\tpatient\n")
    assert problems(home, study) == []
    people = open_people(home, study)
    assert [len(row) for row in people] == [0, 1, 1, 0, 1, 0]
    assert_array_equal(people[1], [[31.0, 1000.5, 55.0]])


def test_scans_in_place_of_rows_are_another_site(home, study):
    approve(home, study)
    (home.data_path / "participants.tsv").rename(home.folder / "participants.tsv")
    for name in PEOPLE:
        (home.data_path / f"{name}.tsv").write_text("1\t2\t3\n4\t5\t7\n" + f"{name[4:]}\t0\t0\n")
    assert "the data of 6 of 6 participants changed" in changed_since_approval(home, study)[0]
    assert not any(len(row) for row in open_people(home, study))
    assert "a scan; expected a row of a participant table" in problems(home, study)[-1]


@pytest.mark.parametrize("approved", [False, True])
def test_nobody_reads_the_row_of_who_withdrew(home, study, approved):
    if approved:
        approve(home, study)
    assert withdraw(home, "03").name == "sub-03"
    if approved:
        assert read_record(home, study).people["sub-03"] == {}
    else:
        approve(home, study)
    people = open_people(home, study)
    assert people.names == PEOPLE
    assert [len(row) for row in people] == [1, 1, 1, 0, 1, 1]
    assert problems(home, study) == []
    write(home, {name: cells for name, cells in rows().items() if name != "sub-03"})
    assert problems(home, study) == []
    enrolment = enrol(home, home.settings.data, study, again=True)
    assert "sub-03" not in enrolment.enrolled
    write(home)
    assert "sub-03" not in enrol(home, home.settings.data, study, again=True).enrolled


def test_a_row_has_no_brain_networks(home, study, tmp_path):
    with pytest.raises(InputError, match="rows of a table, which give no individual brain networks"):
        write_local_results(tmp_path, home)


def test_a_mean_between_three_tables(homes, study, tmp_path):
    for home in homes:
        approve(home, study)
    write(homes[1], rows() | {"sub-04": [1, 2, 3, "control"]})
    with pytest.raises(
        InputError, match=r"nothing was spent: site s2: the data of 1 of 6 participants changed"
    ):
        run_study(study, homes, tmp_path / "run")
    approve(homes[1], study)
    assert run_study(study, homes, tmp_path / "run").complete
    table = (tmp_path / "run" / "mean.csv").read_text()
    assert [name for name in COLUMNS if name in table] == list(COLUMNS)
