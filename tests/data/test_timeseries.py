"""Tables in a folder: read lazily, never failing during a run, and all that is wrong told before it."""

import io
import os
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from scipy.io import savemat

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.data import FeatureTable, People, find_people, open_features
from capedjica.errors import InputError

FEATURES, COMPONENTS = 4, 3
SCAN = np.random.default_rng(0).standard_normal((8, FEATURES)).astype(np.float32)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def csv(array, delimiter=",", header=""):
    rows = [delimiter.join(f"{value:.9g}" for value in row) for row in np.atleast_2d(array)]
    return (header + "\n".join(rows) + "\n").encode()


def changed(place, value, scan=SCAN):
    scan = scan.copy()
    scan[place] = value
    return scan


def header_of(shape):
    """A .npy file with this shape in its header and 16 bytes of data."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(16)


def folder_with(folder, **files):
    """Write files, named by stem and ending: sub_1__npy is sub-1.npy."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, ending = name.rpartition("__")
        (folder / f"{stem.replace('_', '-')}.{ending}").write_bytes(content)
    return folder


def people_of(folder, n_features=FEATURES, **options):
    found = find_people("files", folder, **options)
    return People(found.people, open_features(FeatureTable(), folder, n_features))


def problems_of(folder, n_components=COMPONENTS):
    found = find_people("files", folder)
    return [*found.problems, *people_of(folder).check(n_components)]


# Finding ----------------------------------------------------------------------------------------------------


def test_files_of_known_kinds_in_the_order_of_their_names(tmp_path):
    content = {"sub_10__npy": npy(SCAN), "sub_02__csv": csv(SCAN), "sub_03__tsv": csv(SCAN, "\t")}
    folder_with(tmp_path, **content, notes__txt=b"hello", _x__nii=b"")
    (tmp_path / ".sub-04.npy").write_bytes(npy(SCAN))
    (tmp_path / "._sub-10.npy").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / "sub-11.NPY").write_bytes(npy(SCAN))
    (tmp_path / "participants.tsv").write_text("participant_id\nsub-02\n")
    files = people_of(tmp_path)
    assert files.names == ["sub-02", "sub-03", "sub-10", "sub-11"]
    paths = [recording.path.name for person in files.people for recording in person.recordings]
    assert paths == ["sub-02.csv", "sub-03.tsv", "sub-10.npy", "sub-11.NPY"]
    assert len(files) == 4
    for scan in files:
        assert_array_equal(scan.astype(np.float32), SCAN)
    assert files.n_unreadable == 0
    assert repr(files) == "People(4 people, n_features=4)"
    assert people_of(tmp_path, pattern="*1?.*").names == ["sub-10", "sub-11"]


def test_a_pattern_may_go_into_folders_but_not_into_hidden_ones(tmp_path):
    for place in ("a", "b", ".annex"):
        folder_with(tmp_path / place, **{f"sub_{len(place)}{place[-1]}__npy": npy(SCAN)})
    assert people_of(tmp_path, pattern="**/*").names == ["sub-1a", "sub-1b"]


def test_slices_are_people_too(tmp_path):
    files = people_of(folder_with(tmp_path, a__npy=npy(SCAN), b__npy=npy(SCAN), c__npy=b""))
    assert files[1:].names == ["b", "c"]
    assert files[-1].shape == (0, FEATURES)
    assert files[1:].n_unreadable == 0
    with pytest.raises(IndexError):
        files[3]


@pytest.mark.parametrize(
    ("folder", "pattern", "message"),
    [
        ("missing", "*", "missing is not a folder; expected a folder with scans"),
        ("sub-1.npy", "*", "sub-1.npy is not a folder; expected a folder with scans"),
        (".", "*.csv", r"contains no .npy, .csv, .* file that matches '\*.csv'"),
        (".", "/etc/*", "pattern must be a pattern of file names in"),
        (".", "", "pattern must be a pattern of file names in"),
    ],
)
def test_nothing_to_be_found(tmp_path, folder, pattern, message):
    folder_with(tmp_path, sub_1__npy=npy(SCAN))
    with pytest.raises(InputError, match=message):
        find_people("files", tmp_path / folder, pattern=pattern)


# Reading ----------------------------------------------------------------------------------------------------


def test_a_file_is_read_when_it_is_asked_for_and_not_kept(tmp_path):
    files = people_of(folder_with(tmp_path, a__npy=npy(SCAN)))
    assert_array_equal(files[0], SCAN)
    (tmp_path / "a.npy").write_bytes(npy(2 * SCAN))
    assert_array_equal(files[0], 2 * SCAN)
    (tmp_path / "a.npy").unlink()
    assert files[0].shape == (0, FEATURES)
    assert [scan.shape for scan in files] == [(0, FEATURES)]
    assert files.n_unreadable == 1


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("<f4", "f4"), (">f4", "f4"), ("f2", "f4"), ("f8", "f8"), (">f8", "f8"), ("i2", "f8"), ("u1", "f8")],
)
def test_numbers_of_any_real_type(tmp_path, dtype, expected):
    numbers = (10 * np.abs(SCAN)).astype(dtype)
    files = people_of(folder_with(tmp_path, a__npy=npy(numbers), b__npy=npy(np.asfortranarray(numbers))))
    for scan in files:
        assert scan.dtype == np.dtype(expected)
        assert scan.flags["C_CONTIGUOUS"]
        assert_array_equal(scan, numbers)


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1,2\r\n3,4\r\n",
        "1,2\r3,4\r",
        "\n1, 2\n\n  \n 3,4\n\n",
        "left,right\n1,2\n3,4\n",
        '"left, upper","right"\n"1","2"\n3,4\n',
        "# left,right\n1,2\n3,4\n",
        "\n,\n1,2\n3,4\n",
        "\ufeffleft,right\n1,2\n3,4\n",
        "\ufeff1,2\n3e0,+4.0\n",
    ],
)
def test_tables(tmp_path, text):
    folder_with(tmp_path, a__csv=text.encode(), b__tsv=text.replace(",", "\t").encode())
    files = people_of(tmp_path, 2)
    for scan in files:
        assert_array_equal(scan, [[1, 2], [3, 4]])
    assert files.check(2) == []


@pytest.mark.parametrize(
    "text",
    ["1 2\n3 4\n", "#1\t#2\n1\t2\n3\t4\n", "# made by\n\n  1   2 \n# between\n3\t4", "x y\n1 2\n3 4\n"],
)
def test_tables_of_afni(tmp_path, text):
    files = people_of(folder_with(tmp_path, Pitt_0050003_rois_cc200__1D=text.encode()), 2)
    assert_array_equal(files[0], [[1, 2], [3, 4]])
    assert files.check(2) == []


@pytest.mark.parametrize(("dtype", "expected"), [("f8", "f8"), ("f4", "f4"), ("i2", "f8")])
def test_the_one_matrix_of_a_matlab_file(tmp_path, dtype, expected):
    numbers = (10 * SCAN).astype(dtype)
    savemat(tmp_path / "sub-1.mat", {"TR": 2.0, "names": ["a", "b"], "ROI": numbers, "flags": SCAN > 0})
    (scan,) = people_of(tmp_path)
    assert scan.dtype == np.dtype(expected)
    assert_array_equal(scan, numbers)


def mat(**variables):
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 4)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_nine_digits_hold_every_float32(tmp_path_factory, scan):
    folder = folder_with(tmp_path_factory.mktemp("text"), a__csv=csv(scan), b__npy=npy(scan))
    text, binary = people_of(folder, scan.shape[1])
    assert_array_equal(text.astype(np.float32), binary)


@given(st.binary(max_size=300), st.sampled_from(["npy", "csv", "tsv", "1D", "mat"]), st.booleans())
def test_no_content_makes_reading_or_checking_fail(tmp_path_factory, content, ending, whole_header):
    if whole_header:
        content = npy(SCAN)[:40] + content
    folder = folder_with(tmp_path_factory.mktemp("junk"), **{f"a__{ending}": content})
    files = people_of(folder)
    assert files[0].shape[1] == FEATURES
    found = files.check(COMPONENTS)
    if files.n_unreadable:
        assert any(problem.fatal for problem in found)
    for problem in found:
        assert str(problem).isprintable()


# Every kind of bad file: how it ends, what is in it, what check() says. -------------------------------------

BAD_FILES = {
    "not npy": (
        "npy",
        b"hello, I am no array\n",
        ["not a NumPy array; expected a .npy file with a complete"],
    ),
    "empty npy": ("npy", b"", ["an empty file; expected numbers"]),
    "no header": (
        "npy",
        npy(SCAN)[:60],
        ["not a NumPy array; expected a .npy file with a complete header"],
    ),
    "truncated": (
        "npy",
        npy(SCAN)[:-5],
        ["truncated after 123 bytes; expected the 128 bytes of shape (8, 4)"],
    ),
    "truncated and narrow": (
        "npy",
        npy(SCAN[:, :3])[:-5],
        ["3 features; expected 4 for every scan", "truncated after 91 bytes; expected the 96 bytes of"],
    ),
    "a promise of 72 TiB": (
        "npy",
        header_of("(5000000000000, 4)"),
        ["truncated after 16 bytes; expected the 80000000000000"],
    ),
    "more than 2^63 numbers": (
        "npy",
        header_of("(3037000500, 3037000500)"),
        ["3037000500 features", "truncated after 16 bytes"],
    ),
    "negative": (
        "npy",
        header_of("(-1, 4)"),
        ["content that cannot be read; expected numbers"],
    ),
    "pickle": (
        "npy",
        npy(np.array([[None, 1.0]] * 5), allow_pickle=True),
        ["2 features", "pickled Python objects, which are never opened; expected numbers"],
    ),
    "complex": ("npy", npy(SCAN.astype(complex)), ["values of type complex128; expected real numbers"]),
    "strings": ("npy", npy(SCAN.astype(str)), ["values of type <U"]),
    "truth values": ("npy", npy(SCAN > 0), ["values of type bool; expected real numbers"]),
    "fields": (
        "npy",
        npy(np.zeros((8, 4), dtype=[("a", "f4")])),
        ["values of type [('a', '<f4')]; expected real"],
    ),
    "one dimension": (
        "npy",
        npy(SCAN[0]),
        ["an array of shape (4,); expected two dimensions, (time, features)"],
    ),
    "three dimensions": ("npy", npy(SCAN[None]), ["an array of shape (1, 8, 4); expected two dimensions"]),
    "a number": ("npy", npy(np.float32(3)), ["an array of shape (); expected two dimensions"]),
    "no time points": (
        "npy",
        npy(SCAN[:0]),
        ["0 time points; expected at least 3, the number"],
    ),
    "no features": ("npy", npy(SCAN[:, :0]), ["no values (shape (8, 0)); expected a scan"]),
    "wide": ("npy", npy(np.hstack([SCAN, SCAN])), ["8 features; expected 4 for every scan"]),
    "short": ("npy", npy(SCAN[:2]), ["2 time points; expected at least 3, the number of components"]),
    "NaN": (
        "npy",
        npy(changed(([2, 3], [1, 0]), np.nan)),
        ["values that are NaN or infinite (2), the first at time point 3 of 8, feature 2 of 4; expected"],
    ),
    "infinity": (
        "npy",
        npy(changed((7, 3), -np.inf)),
        ["(1), the first at time point 8 of 8, feature 4 of 4"],
    ),
    "constant": (
        "npy",
        npy(changed((slice(None), [1, 3]), 5.0)),
        ["constant features (2), the first is feature 2 of 4; expected signal in every feature"],
    ),
    "three at once": (
        "npy",
        npy(changed((0, 0), np.nan, changed((slice(None), 2), 0.0, np.tile(SCAN, (2, 2))))),
        [
            "8 features",
            "NaN or infinite (1)",
            "constant features (1), the first is feature 3 of 8",
        ],
    ),
    "text": (
        "csv",
        csv(SCAN[:3]) + b"1,n/a,3,4\n5,6,n/a,\n",
        ["cells that are not numbers (3), the first in line 4, column 2: 'n/a'; expected numbers"],
    ),
    "text below names and a blank line": (
        "csv",
        b"a,b,c,d\n\n" + csv(SCAN[:4]) + b"1,2,3,bad\n",
        ["(1), the first in line 7, column 4: 'bad'; expected numbers"],
    ),
    "long text": (
        "csv",
        csv(SCAN[:4]) + b"1,2,3," + b"x" * 50,
        [": '" + "x" * 40 + "...'; expected numbers"],
    ),
    "digits of Python alone": ("csv", csv(SCAN[:4]) + b"1,2,3,4_0\n", ["line 5, column 4: '4_0'"]),
    "ragged": (
        "csv",
        csv(SCAN[:4]) + b"1,2,3\n1,2,3,4,5\n",
        ["a different length (2), the first is line 5 with 3 cells; expected 4 cells, as in most lines"],
    ),
    "ragged, text, narrow": (
        "csv",
        csv(SCAN[:4, :3]) + b"1,2\n1,2,-\n",
        [
            "3 features; expected 4",
            "(1), the first in line 6, column 3: '-'",
            "lines of a different length (1)",
        ],
    ),
    "semicolons": (
        "csv",
        csv(SCAN, ";"),
        ["1 features", "cells that are not numbers (7), the first in line 2"],
    ),
    "tabs in csv": ("csv", csv(SCAN, "\t"), ["1 features", "cells that are not numbers"]),
    "commas in tsv": ("tsv", csv(SCAN), ["1 features", "cells that are not numbers"]),
    "names alone": ("csv", b"a,b,c,d\n", ["no values (shape (0, 0)); expected a scan"]),
    "blank": ("csv", b"\n \n\n", ["no values (shape (0, 0)); expected a scan"]),
    "empty csv": ("csv", b"", ["an empty file; expected numbers"]),
    "NaN in a table": (
        "csv",
        csv(changed((1, 1), np.nan)),
        ["(1), the first at time point 2 of 8, feature 2 of 4"],
    ),
    "not text": ("csv", b"\xff\xfe1\x00,\x002\x00\n\x00", ["not UTF-8 text; expected a table of numbers"]),
    "an array named csv": ("csv", npy(SCAN), ["not UTF-8 text"]),
    "all constant": ("npy", npy(np.ones((8, 4))), ["constant values in every feature; expected signal"]),
    "text in 1D": ("1D", b"#1 #2 #3 #4\n1 2 3 4\n1 2 x 4\n", ["line 3, column 3: 'x'; expected numbers"]),
    "ragged 1D": ("1D", b"1 2 3 4\n1 2 3 4\n1 2 3\n", ["line 3 with 3 cells; expected 4 cells, as in most"]),
    "remarks alone": ("1D", b"#1 #2\n", ["no values (shape (0, 0)); expected a scan"]),
    "two matrices": (
        "mat",
        mat(left=SCAN, right=SCAN),
        ["2 matrices ('left, right'); expected one matrix, (time, features)"],
    ),
    "no matrix": ("mat", mat(TR=2.0), ["no numeric matrix; expected one matrix, (time, features)"]),
    "wide matrix": ("mat", mat(left=np.hstack([SCAN, SCAN])), ["8 features; expected 4 for every scan"]),
    "not MATLAB": (
        "mat",
        b"hello, I am no matrix" * 20,
        ["not a MATLAB file; expected a complete"],
    ),
    "truncated matrix": ("mat", mat(left=SCAN)[:-60], ["content that cannot be read; expected numbers"]),
    "MATLAB 7.3": (
        "mat",
        b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n",
        ["a MATLAB 7.3 file (HDF5); expected a file saved with the option -v7"],
    ),
}
# Scans that a run reads as they are; the statistics cope with them.
READ = {"short", "NaN", "infinity", "constant", "NaN in a table", "no time points", "all constant"}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_check_lists_everything_that_is_wrong(tmp_path, kind):
    ending, content, expected = BAD_FILES[kind]
    found = problems_of(folder_with(tmp_path / "data", **{f"sub_1__{ending}": content}))
    assert len(found) == len(expected)
    for problem, text in zip(found, expected, strict=True):
        assert text in str(problem)
        assert str(problem).startswith(str(tmp_path / "data" / f"sub-1.{ending}: "))
        assert problem.name == "sub-1"
        assert problem.fatal == ("constant features" not in text)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_run_never_fails_because_of_a_file(tmp_path, kind):
    ending, content, _ = BAD_FILES[kind]
    sound = {
        "npy": npy(SCAN),
        "csv": csv(SCAN),
        "tsv": csv(SCAN, "\t"),
        "1D": csv(SCAN, " "),
        "mat": mat(roi=SCAN),
    }[ending]
    files = people_of(folder_with(tmp_path, **{f"sub_1__{ending}": sound}))
    assert files.check(COMPONENTS) == []
    (tmp_path / f"sub-1.{ending}").write_bytes(content)
    for _ in range(2):
        scan = files[0]
        assert scan.ndim == 2
        assert scan.shape[1] == FEATURES
        assert scan.dtype in (np.float32, np.float64)
        assert kind in READ or not len(scan)
    assert files.n_unreadable == (kind not in READ)


def test_an_image_is_no_table(tmp_path):
    (tmp_path / "sub-1.nii.gz").write_bytes(b"an image")
    people = People(find_people("auto", tmp_path).people, open_features(FeatureTable(), tmp_path, 4))
    (problem,) = people.check(COMPONENTS)
    assert "not a table; expected a table (.npy, .csv" in str(problem)
    assert "images need an atlas or a mask in the study" in str(problem)
    assert people[0].shape == (0, 4)


def test_sound_files_have_no_problems(tmp_path):
    rng = np.random.default_rng(1)
    for number, length in enumerate((COMPONENTS, 7, 10)):
        folder_with(tmp_path, **{f"sub_{number}__npy": npy(rng.standard_normal((length, FEATURES)))})
    assert problems_of(tmp_path) == []
    assert len(problems_of(tmp_path, 8)) == 2


def test_all_files_are_looked_at(tmp_path):
    folder_with(tmp_path, a__npy=b"junk", b__npy=npy(SCAN), c__npy=npy(SCAN[:, :2]), d__csv=b"1,x,3,4\n")
    calls = []
    found = people_of(tmp_path).check(1, progress=lambda: calls.append(1))
    assert [problem.name for problem in found] == ["a", "c", "d"]
    assert len(calls) == 4


def test_two_files_of_one_subject(tmp_path):
    folder_with(tmp_path, a__npy=npy(SCAN), a__csv=csv(SCAN), b__npy=npy(2 * SCAN))
    (problem,) = problems_of(tmp_path)
    assert str(problem) == (
        f"{tmp_path / 'a.npy'}: the same subject and run as {tmp_path / 'a.csv'}; expected one file per run"
    )
    assert problem.fatal


def test_what_is_no_file_is_a_problem(tmp_path):
    folder_with(tmp_path, d__npy=npy(SCAN))
    (tmp_path / "a.npy").symlink_to(tmp_path / "content that was never fetched")
    (tmp_path / "b.npy").mkdir()
    (tmp_path / "c.csv").mkdir()
    files = people_of(tmp_path)
    (tmp_path / "d.npy").unlink()
    assert [scan.shape for scan in files] == [(0, FEATURES)] * 4
    assert files.n_unreadable == 4
    found = [str(problem) for problem in files.check(COMPONENTS)]
    assert len(found) == 4
    assert "a.npy: cannot be read (No such file or directory); expected a readable file" in found[0]
    assert "b.npy: cannot be read (Is a directory)" in found[1]
    assert "c.csv: cannot be read (Is a directory)" in found[2]
    assert "d.npy: cannot be read (No such file or directory)" in found[3]


FORBIDDEN = """
import os, sys
from capedjica.data import FeatureTable, People, find_people, open_features
from capedjica.errors import InputError
os.setuid(65534)
files = People(find_people("auto", "data").people, open_features(FeatureTable(), ".", 4))
print(files.check(3)[0])
print(files[0].shape, files.n_unreadable)
try:
    find_people("auto", "closed")
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights of another user")
def test_files_of_other_users(tmp_path):
    tmp_path.chmod(0o755)
    folder_with(tmp_path / "data", a__npy=npy(SCAN))
    (tmp_path / "data" / "a.npy").chmod(0o000)
    folder_with(tmp_path / "closed", a__npy=npy(SCAN)).chmod(0o700)
    program = [sys.executable, "-c", FORBIDDEN]
    result = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        "data/a.npy: cannot be read (Permission denied); expected a readable file",
        "(0, 4) 1",
        "closed cannot be read: permission denied; grant read access to this folder",
    ]


def test_a_problem_is_one_line_whatever_the_file_is_called(tmp_path):
    (tmp_path / "two\nlines\x1b[31m.npy").write_bytes(b"junk")
    (problem,) = problems_of(tmp_path)
    assert "two\\nlines\\x1b[31m.npy: not a NumPy array" in str(problem)
    assert str(problem).isprintable()


def test_nothing_of_a_scan_is_in_a_repr(tmp_path):
    files = people_of(folder_with(tmp_path, secret_name__npy=npy(SCAN)))
    assert "secret" not in repr(files) + repr(files.people)


def test_bad_demands_are_refused(tmp_path):
    folder_with(tmp_path, a__npy=npy(SCAN))
    with pytest.raises(InputError, match="n_features must be a whole number of at least 1, got 0"):
        people_of(tmp_path, 0)
    with pytest.raises(InputError, match="n_features must be given"):
        people_of(tmp_path, None)
    with pytest.raises(InputError, match=r"n_components must be a whole number of at least 1, got 2\.5"):
        people_of(tmp_path).check(2.5)


def test_memory_is_that_of_one_subject(tmp_path):
    scan = np.random.default_rng(0).standard_normal((100, 5000))  # 4 MB
    for number in range(12):
        np.save(tmp_path / f"sub-{number}.npy", scan)
    files = people_of(tmp_path, 5000)
    tracemalloc.start()
    assert files.check(10) == []
    assert sum(float(subject.sum()) for subject in files) != 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * scan.nbytes


LONG = np.random.default_rng(4).standard_normal((LONGEST_SCAN + 3, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("ending", ["npy", "fortran", "csv", "1D"])
def test_of_a_file_that_is_too_long_the_first_time_points_are_read(tmp_path, ending):
    content = {
        "npy": lambda: npy(LONG),
        "fortran": lambda: npy(np.asfortranarray(LONG)),
        "csv": lambda: csv(LONG, header="a,b,c,d\n"),
        "1D": lambda: csv(LONG, " "),
    }[ending]()
    people = people_of(
        folder_with(tmp_path, **{f"sub_1__{'npy' if ending == 'fortran' else ending}": content})
    )
    assert_array_equal(people[0].astype(np.float32), LONG[:LONGEST_SCAN])
    assert people.check(COMPONENTS) == []
    (note,) = people.check(COMPONENTS, longest=LONGEST_SCAN // 2)
    assert not note.fatal
    assert f"{LONGEST_SCAN} time points; expected at most {LONGEST_SCAN // 2}" in str(note)


def test_a_matrix_of_matlab_that_is_too_long_is_refused(tmp_path):
    people = people_of(folder_with(tmp_path, sub_1__mat=mat(roi=LONG)))
    assert people[0].shape == (0, FEATURES)
    (problem,) = people.check(COMPONENTS)
    assert f"{LONGEST_SCAN + 3} time points; expected at most {LONGEST_SCAN} in a MATLAB file" in str(problem)


def assert_unread(people, most_bytes):
    """The first person has no time points, and next to no memory was taken to see that."""
    tracemalloc.start()
    try:
        assert people[0].shape == (0, FEATURES)
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def test_a_file_that_promises_too_much_takes_no_memory(tmp_path):
    """A header is quickly written; nothing is set aside for what it says."""
    content = header_of((10**9, FEATURES)) + bytes(8 * FEATURES)
    people = people_of(folder_with(tmp_path, sub_1__npy=content))
    assert_unread(people, 10**7)


@pytest.mark.parametrize("shape", [(2, 10**8), (2, 2, 5 * 10**7)])
def test_a_file_of_another_width_is_not_read(tmp_path, shape):
    path = tmp_path / "sub-1.npy"
    path.write_bytes(header_of(shape))
    os.truncate(path, 128 + 4 * 10**8)  # with holes in place of its numbers
    people = people_of(tmp_path)
    assert_unread(people, 10**6)


def test_a_line_without_end_is_not_read(tmp_path):
    people = people_of(folder_with(tmp_path, sub_1__csv=b"1," * 10**7))
    assert_unread(people, 10**7)
