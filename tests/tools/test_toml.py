"""Settings files are read strictly, and everything wrong with one is said at once."""

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.tools.toml import problems, read_toml, toml_value


class Wheel(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=2, le=40)]
    spokes: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5


class Vehicle(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    wheels: tuple[Wheel, ...]
    schema: int = 1
    colour: Literal["green", "yellow"] = "green"
    seats: int | Literal["many"] = 1
    shape: tuple[int, int] | None = None
    electric: bool = False


@pytest.fixture
def read(tmp_path):
    def read(text, schema=None):
        (tmp_path / "v.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_toml(tmp_path / "v.toml", Vehicle, schema)

    return read


GOOD = 'name = "a"\n[[wheels]]\nsize = 3\n'


def test_a_good_file_is_read(read):
    assert read(GOOD) == Vehicle(name="a", wheels=(Wheel(size=3),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colur = 1\n" + GOOD, "colur is not a known key; did you mean colour?"),
        (
            "x = 1\n" + GOOD,
            "x is not a known key; known: name, wheels, schema, colour, seats, shape, electric",
        ),
        ("[[wheels]]\nsize = 3\n", "name is missing"),
        (
            'name = "a"\n[[wheels]]\nsize = 3\nsise = 3\n',
            r"wheels\[1\].sise is not a known key; did you mean size?",
        ),
        (
            'name = "a"\n[[wheels]]\nsize = 1\n',
            r"wheels\[1\].size: expected a whole number of at least 2, got 1",
        ),
        ('name = "a"\n[[wheels]]\nsize = 50\n', "expected a whole number of at most 40, got 50"),
        (GOOD + "spokes = 0\n", "spokes: expected a number above 0, got 0"),
        (GOOD + "spokes = 1\n", "spokes: expected a number below 1, got 1"),
        (GOOD + "spokes = nan\n", "spokes: expected a number above 0, got nan"),
        ('colour = "gren"\n' + GOOD, "colour: 'gren' is not known; did you mean green?"),
        ('colour = "blue"\n' + GOOD, "colour: 'blue' is not known; known: green, yellow"),
        ("seats = 1.5\n" + GOOD, "seats: expected a whole number or 'many', got 1.5"),
        ('seats = "may"\n' + GOOD, "seats: 'may' is not known; did you mean many?"),
        ("shape = [1]\n" + GOOD, r"shape: expected a list of length 2, got \[1\]"),
        ("shape = [1, 2.5]\n" + GOOD, r"shape: expected a whole number, got \[1, 2.5\]"),
        ("electric = 1\n" + GOOD, "electric: expected true or false, got 1"),
        ('name = "a"\nwheels = [1]\n', r"wheels\[1\]: expected a table, got 1"),
        ('name = "a"\nwheels = 1\n', "wheels: expected a list, got 1"),
        ("name = 1979-05-27\nwheels = []\n", "name: expected text, got datetime.date"),
        ('"\\u001b[31m\\n" = 1\n' + GOOD, r"'\\x1b\[31m\\n' is not a known key"),
        (
            "name = [" + '"aaaaaaaaaa",' * 100 + "]\nwheels = []\n",
            r"name: expected text, got \['aaaaaaaaaa', .*\.\.\.$",
        ),
    ],
)
def test_what_is_wrong_is_said_on_one_line(read, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_all_problems_are_listed(read):
    with pytest.raises(InputError) as caught:
        read('colur = 1\nelectric = 1\n[[wheels]]\nsize = 3\n[[wheels]]\nsize = "x"\nspoke = 1\n')
    first, *rest = str(caught.value).splitlines()
    assert first.endswith("v.toml: 5 problems")
    assert rest == [
        "  - colur is not a known key; did you mean colour?",
        "  - name is missing",
        "  - wheels[2].spoke is not a known key; did you mean spokes?",
        "  - wheels[2].size: expected a whole number, got 'x'",
        "  - electric: expected true or false, got 1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml at all [", "is not valid TOML"),
        ('name = "a"\nname = "b"\n', "is not valid TOML"),
        ("name = ../data\n", r"is not valid TOML: Invalid value .*; text needs quotes"),
        (b"\xff\xfe", "is not a UTF-8 text file"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = 1" + "0" * 5000, "is not valid TOML: Exceeds the limit"),
        ('a\x1b = "\x1b"\n', "is not valid TOML"),
    ],
)
def test_what_is_no_settings_file_is_refused_on_one_line(read, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert str(caught.value).isprintable()


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_toml(path, Vehicle)


def test_a_file_of_another_version_is_refused_as_such(read):
    assert read("schema = 1\n" + GOOD, schema=1) == read(GOOD, schema=1)
    with pytest.raises(InputError, match="schema must be 1, got 2; the file was written for another version"):
        read("schema = 2\nnew_key = 1\n", schema=1)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
tables = st.dictionaries(st.sampled_from(["name", "wheels", "shape", "seats", "size", "x\n"]), values)


@given(tables)
@example({"name": "a", "wheels": [{"size": 2}], "seats": True})
def test_no_problems_means_that_it_fits_and_the_other_way_round(table):
    found = problems(table, Vehicle)
    try:
        msgspec.convert(table, Vehicle)
    except msgspec.ValidationError:
        assert found
    else:
        assert found == []
    assert all(problem.isprintable() for problem in found)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example('"\\\n\r\t\x00\x7f\u2028é𝄞')
def test_text_survives(text):
    import tomllib

    assert tomllib.loads(f"x = {toml_value(text)}") == {"x": text}
    assert tomllib.loads(f"x = {toml_value([1, 2.5e-300, True])}") == {"x": [1, 2.5e-300, True]}
