"""Tables with a row per participant: owners of rows, what is read, and messages about the rest."""

import os
import re

import msgspec
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from capedjica.data import FeatureTable, People, find_people, open_features, participant_table
from capedjica.data.features import feature_problems
from capedjica.data.participant_table import row_digest
from capedjica.data.scans import Person, Recording
from capedjica.errors import InputError

PLAIN = "participant_id\tage\tvolume\tsex\nsub-02\t41\t1.5e3\tF\nsub-01\t30\t-2.25\tM\n"


def written(folder, content=PLAIN, name="participants.tsv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def features(*columns):
    return open_features(FeatureTable(kind="table", columns=columns), ".", None)


def people(folder, *columns, **options):
    return People(find_people("table", folder, **options).people, features(*columns))


def told(folder, *columns):
    """What is wrong, by person, without the name of the file."""
    return [(problem.name, problem.found, problem.expected) for problem in people(folder, *columns).check(5)]


# Settings of a study --------------------------------------------------------------------------------------


def test_features_are_the_named_columns():
    table = FeatureTable(kind="table", columns=("volume", "age"))
    assert feature_problems(table) == []
    opened = open_features(table, ".", 2)
    assert (opened.n_features, opened.basis, opened.key, opened.image(np.ones((1, 2)))) == (
        2,
        None,
        None,
        None,
    )
    assert msgspec.convert({"kind": "table", "columns": ["volume", "age"]}, FeatureTable) == table
    with pytest.raises(InputError, match=r"features.n_features is 3, but features.columns names 2"):
        open_features(table, ".", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ()}, "features.columns must name the columns to analyse"),
        ({"columns": ("a", "b", "a")}, "must name each column once, got 'a' 2 times"),
        ({"columns": ("a", "")}, "must be printable names on one line, got ''"),
        ({"columns": ("a", " b")}, "must be printable names on one line, got ' b'"),
        ({"columns": ("a\n",)}, r"must be printable names on one line, got 'a\\n'"),
        ({"columns": ("a\x1b[2J",)}, "must be printable names on one line"),
        ({"columns": ("participant_id",)}, "participant_id identifies participants"),
        ({"scan_length": 100}, "features.scan_length is only for scans"),
        ({"image_shape": (1, 1)}, "features.image_shape is only for scans"),
        ({"detrend": True}, "features.detrend is only for scans; features.kind is 'table'"),
        ({"standardize": True}, "features.standardize is only for scans"),
        ({"atlas": "a.nii"}, "features.atlas is only for scans"),
        ({"mask": "epi"}, "features.mask is only for scans"),
        ({"confounds": ("motion",)}, "features.confounds is only for scans"),
        ({"kind": "columns"}, "features.columns is only for kind 'table'; features.kind is 'columns'"),
        ({"kind": "voxels", "voxel_size": 4.0}, "features.columns is only for kind 'table'"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, options, message):
    table = FeatureTable(**({"kind": "table", "columns": ("a",)} | options))
    assert len(feature_problems(table)) == 1
    with pytest.raises(InputError, match=message):
        open_features(table, tmp_path, None)


# Rows -----------------------------------------------------------------------------------------------------


def test_a_person_is_one_row_in_the_order_of_names(tmp_path):
    written(tmp_path)
    found = people(tmp_path, "volume", "age")
    assert found.names == ["sub-01", "sub-02"]
    assert_array_equal(found[0], [[-2.25, 30.0]])
    assert_array_equal(found[1], [[1500.0, 41.0]])
    assert found[0].dtype == np.float64
    assert found.check(20) == []
    assert list(people(tmp_path, "age", participants=["02"]).names) == ["sub-02"]
    assert [one.name for one in find_people("table", tmp_path, without={"sub-01"}).people] == ["sub-02"]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        "\n\t\t\t\n" + PLAIN.replace("\n", "\n\n"),
        PLAIN.rstrip("\n"),
        PLAIN.replace("age", " age ").replace("41", " 41 ").replace("sub-02", " sub-02"),
        PLAIN.replace("sub-", ""),
        PLAIN.replace("F", '"words, and\ta tab"').replace("41", '"41"'),
        PLAIN.replace("sex", "sex\tsex").replace("F", "F\tF").replace("M", "M\tM"),
    ],
)
def test_tables_as_programs_write_them(tmp_path, content):
    written(tmp_path, content)
    found = people(tmp_path, "age", "volume")
    assert found.names == ["sub-01", "sub-02"]
    assert_array_equal(np.concatenate(list(found)), [[30.0, -2.25], [41.0, 1500.0]])


def test_commas_in_csv(tmp_path):
    written(tmp_path, PLAIN.replace("\t", ","), "people.CSV")
    assert_array_equal(people(tmp_path, "age")[1], [[41.0]])


@pytest.mark.parametrize(
    "cell", ["", "n/a", "NaN", "inf", "1e999", "forty", "4_1", "4,1", "٤١", "0x29", "41\0", "9" * 5000 + "x"]
)
def test_a_cell_that_is_no_number_counts_as_zero_and_is_told(tmp_path, cell):
    path = written(tmp_path, PLAIN.replace("41", cell))
    found = people(tmp_path, "volume", "age")
    assert found[1].shape == (0, 2)
    assert found.n_unreadable == 1
    (problem,) = found.check(5)
    assert problem.fatal
    assert (problem.name, problem.path, problem.expected) == ("sub-02", path, "a finite number")
    assert problem.found.endswith("in line 2 (sub-02), column 'age'")
    assert repr(cell[:40])[1:-1] in problem.found
    assert len(str(problem)) < 300 + len(str(path))


def test_a_column_of_words_or_twice_or_missing(tmp_path):
    written(tmp_path, PLAIN.replace("volume", "age"))
    among = "among 'participant_id', 'age', 'sex'"
    once = "each column that the study analyses, exactly once"
    assert told(tmp_path, "age", "weight") == [
        (name, f"{count} columns {column!r} {among}", once)
        for name in ("sub-01", "sub-02")
        for column, count in (("age", 2), ("weight", "no"))
    ]
    assert told(tmp_path, "sex")[0] == ("sub-01", "'M' in line 3 (sub-01), column 'sex'", "a finite number")
    assert not any(len(row) for row in people(tmp_path, "age"))


def test_a_row_of_another_length_is_not_guessed_at(tmp_path):
    written(tmp_path, PLAIN + "sub-03\t50\t7\nsub-04\t1\t2\tF\t9\n")
    assert told(tmp_path, "age") == [
        ("sub-03", "3 cells in line 4 (sub-03)", "4, one for each column"),
        ("sub-04", "5 cells in line 5 (sub-04)", "4, one for each column"),
    ]


BAD_CELLS = {
    "no text": (b"\xff", "bytes that are not UTF-8 text"),
    "text and more": (b'"5" tall', "malformed cells"),
    "never closed": (b'"open', "malformed cells"),
    "longer than a cell may be": (b"x" * 140_000, "malformed cells"),
    "longer than a line may be": (b"x" * ((1 << 24) + 10), "an overlong line"),
    "somebody else's row after a line's end": (b"F\rsub-01\t99\t0\tM", "malformed cells"),
    "that in quotation marks": (b'"F\rsub-01\t99\t0\tM', "malformed cells"),
}


@pytest.mark.parametrize(("cell", "why"), BAD_CELLS.values(), ids=BAD_CELLS.keys())
def test_one_persons_cell_changes_nobody_elses_row(tmp_path, cell, why):
    path = written(tmp_path, PLAIN)
    before = [row_digest(Recording(path, row=name)) for name in ("sub-01", "sub-02")]
    written(tmp_path, PLAIN.encode().replace(b"F", cell))
    found = people(tmp_path, "age")
    assert found.names == ["sub-01", "sub-02"]
    assert [row.tolist() for row in found] == [[[30.0]], []]
    (problem,) = found.check(5)
    assert (problem.name, problem.fatal) == ("sub-02", True)
    assert problem.found.startswith(why)
    assert problem.found.endswith("in line 2 (sub-02)")
    after = [row_digest(Recording(path, row=name)) for name in ("sub-01", "sub-02")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


def test_a_row_is_a_line(tmp_path):
    """What is in quotation marks too: else one that is not closed would take in the rows that follow."""
    written(tmp_path, PLAIN.replace("F", '"two\nlines"'))
    found = people(tmp_path, "age")
    assert [row.tolist() for row in found] == [[[30.0]], []]
    assert found.names == ["sub-01", "sub-02"]


@pytest.mark.parametrize("again", ["sub-01", "01", " sub-01 "])
def test_a_person_with_two_rows_has_none(tmp_path, again):
    path = written(tmp_path, PLAIN + f"{again}\t31\t0\tM\n")
    (problem,) = find_people("table", tmp_path).problems
    assert str(problem) == f"{path}: sub-01 in 2 rows (lines 3, 4); expected one row per participant"
    assert (problem.name, problem.fatal) == ("sub-01", True)
    found = people(tmp_path, "age")
    assert found.names == ["sub-01", "sub-02"]
    assert [len(row) for row in found] == [0, 1]
    assert found.check(5) == [problem]


@pytest.mark.parametrize(
    "name", ["", "n/a", "a/../../b", "a\\b", "a\x1b[2J", '"a\rb"', "a\rb", b"\xff", "x" * 201]
)
def test_rows_of_nobody_are_told_and_not_used(tmp_path, name):
    name = name if isinstance(name, bytes) else name.encode()
    written(tmp_path, PLAIN.encode() + name + b"\t31\t0\tM\n")
    found = find_people("table", tmp_path)
    assert [person.name for person in found.people] == ["sub-01", "sub-02"]
    (problem,) = found.problems
    assert not problem.fatal
    assert problem.found.startswith("rows without a valid participant_id (lines ")


def test_a_row_that_is_gone(tmp_path):
    written(tmp_path)
    found = people(tmp_path, "age")
    written(tmp_path, PLAIN.replace("sub-01", "sub-11"))
    assert [len(row) for row in found] == [0, 1]
    (problem,) = found.check(5)
    assert problem.found == "no row of sub-01"
    (tmp_path / "participants.tsv").unlink()
    assert [len(row) for row in found] == [0, 0]
    assert "cannot be read (No such file or directory)" in str(found.check(5)[0])


def test_scans_and_rows_are_not_taken_for_each_other(tmp_path):
    """Numbers for names: to a reader of scans everybody's rows would be the scan of each."""
    written(tmp_path, "participant_id\tage\n1\t30\n2\t40\n")
    found = find_people("auto", tmp_path)
    scans = People(found.people, open_features(FeatureTable(), tmp_path, 2))
    assert [len(scan) for scan in scans] == [0, 0]
    assert [problem.found for problem in scans.check(2)] == ["a table with a row per participant"] * 2
    np.save(tmp_path / "scan.npy", np.ones((5, 1)))
    rows = People([Person("a", (Recording(tmp_path / "scan.npy"),))], features("age"))
    assert len(rows[0]) == 0
    assert rows.check(2)[0].found == "a scan"


# Which table ----------------------------------------------------------------------------------------------


def test_a_folder_has_one_table(tmp_path):
    with pytest.raises(InputError, match=r"contains no .tsv, .csv file that matches '\*'"):
        find_people("table", tmp_path)
    written(tmp_path)
    written(tmp_path, PLAIN, "phenotypes.csv")
    with pytest.raises(
        InputError, match=r"several tables \(participants.tsv, phenotypes.csv\); .* by pattern"
    ):
        find_people("table", tmp_path)
    assert len(find_people("table", tmp_path, pattern="part*").people) == 2
    assert find_people("auto", tmp_path, pattern="part*").kind == "table"


def test_what_looks_like_a_table_of_people(tmp_path):
    written(tmp_path)
    (tmp_path / "participants.json").write_text("{}")
    assert find_people("auto", tmp_path).kind == "table"
    (tmp_path / "sub-01.tsv").write_text("1\t2\n3\t4\n")
    assert find_people("auto", tmp_path).kind == "files"
    (tmp_path / "participants.tsv").unlink()
    assert find_people("auto", tmp_path).kind == "files"
    written(tmp_path)
    (tmp_path / "sub-01.tsv").rename(tmp_path / "sub-01.nii")
    assert find_people("auto", tmp_path).kind == "nifti"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty file; expected column names"),
        ("\n\n", "an empty file; expected column names"),
        (
            "id\tage\n1\t2\n",
            "no columns participant_id among 'id', 'age'; "
            "expected one column participant_id, tabs between columns",
        ),
        ("participant_id;age\n1;2\n", "no columns participant_id among 'participant_id;age'"),
        ("participant_id\tparticipant_id\n1\t2\n", "2 columns participant_id"),
        ("participant_id\tage\n", "contains no participant"),
        (PLAIN.encode("utf-16"), "bytes that are not UTF-8 text in its first row"),
        (os.urandom(5000), "not UTF-8 text|no columns|malformed cells"),
        (PLAIN.replace("age", '"age'), r"malformed cells \(.*\) in its first row"),
        (PLAIN.replace("age", "x" * 200_000), "malformed cells"),
        ("participant_id\t" + "x" * (1 << 24), "an overlong line in its first row"),
    ],
)
def test_files_that_are_no_table_of_people(tmp_path, content, message):
    written(tmp_path, content)
    with pytest.raises(InputError, match=message):
        find_people("table", tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with written(tmp_path).open("r+b") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(InputError, match="1,073,741,825 bytes; expected a file of at most"):
        find_people("table", tmp_path)


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "participants.tsv")
    with pytest.raises(InputError, match="contains no"):
        find_people("auto", tmp_path)
    (row,) = People([Person("a", (Recording(tmp_path / "participants.tsv", row="a"),))], features("age"))
    assert not len(row)


# Once per version -----------------------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch):
    """Names of the files that are read."""
    names, read = [], participant_table._read

    def noted(path):
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(participant_table, "_read", noted)
    return names


def test_a_table_is_read_once_until_it_changes(tmp_path, readings):
    rows = "".join(f"sub-{number:04d}\t{number}\n" for number in range(500))
    path = written(tmp_path, f"participant_id\tage\n{rows}")
    found = people(tmp_path, "age")
    assert sum(float(row[0, 0]) for row in found) == sum(range(500))
    assert found.check(2) == []
    assert readings == [path.name]
    content = path.read_text().replace("\t499", "\t498")
    path.write_text(content)
    os.utime(path, ns=(0, 0))
    assert found[499] == [[498.0]]
    assert len(readings) == 2


def test_a_table_that_cannot_be_used_is_not_read_for_everybody(tmp_path, readings):
    path = written(tmp_path)
    found = people(tmp_path, "age")
    path.write_bytes(b"\xff" * 1000)
    assert [len(row) for row in found] == [0, 0]
    assert len(found.check(2)) == 2
    assert len(readings) == 2


def test_names_and_numbers_of_people_are_not_in_representations(tmp_path):
    path = written(tmp_path, PLAIN.replace("sub-01", "sub-smith"))
    found = people(tmp_path, "age")
    person = found.people[1]
    shown = " ".join(
        map(repr, (found, person, person.recordings[0], participant_table.read_person_table(path)))
    )
    shown = re.sub("0x[0-9a-f]+", "", shown)  # addresses in memory are anything
    assert "smith" not in shown
    assert "41" not in shown


def test_the_digest_of_a_row_is_that_persons(tmp_path):
    path = written(tmp_path)
    first = {name: row_digest(Recording(path, row=name)) for name in ("sub-01", "sub-02")}
    written(tmp_path, PLAIN.replace("41", "42").replace("\n", "\r\n") + "sub-03\t1\t1\tF\n")
    assert row_digest(Recording(path, row="sub-01")) == first["sub-01"]
    assert row_digest(Recording(path, row="sub-02")) != first["sub-02"]
    written(tmp_path, PLAIN.replace("age", "weight"))
    assert row_digest(Recording(path, row="sub-01")) != first["sub-01"]
