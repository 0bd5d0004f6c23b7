"""How people's values become numbers: public rules, total at run time, strict beforehand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.algorithms.glm.design import Column, Design
from capedjica.errors import InputError

GROUP = Column("group", "category", levels=("control", "patient"))
AGE = Column("age", low=20, high=60)
SCANNER = Column("scanner", "category", levels=("A", "B", "C"))
values = st.one_of(
    st.none(), st.floats(), st.text(max_size=5), st.integers(), st.booleans(), st.lists(st.none())
)


@given(group=values, age=values, scanner=values)
def test_any_value_becomes_numbers_within_one_or_nan(group, age, scanner):
    coded = Design(GROUP, (AGE, SCANNER)).encode({"group": group, "age": age, "scanner": scanner})
    assert coded.shape == (4,)
    assert (np.isnan(coded) | (np.abs(coded) <= 1)).all()


def test_the_rules():
    design = Design(GROUP, (AGE, SCANNER))
    assert design.names == ("group", "age", "scanner=B", "scanner=C")
    assert design.encode({"group": "patient", "age": 50, "scanner": "C"}).tolist() == [1, 0.5, -1, 1]
    assert design.encode({"group": "control", "age": 99, "scanner": "A"}).tolist() == [-1, 1, -1, -1]
    assert np.isnan(design.encode({"group": "other", "age": None})).all()
    assert Column("sex", "category", levels=("1", "2")).encode(2.0).tolist() == [1]
    assert Column.of("age", (20, 60)) == AGE
    assert Column.of("group", ["control", "patient"]) == GROUP


def test_missing_values_pass_the_check_and_undeclared_ones_do_not():
    design = Design(GROUP, (AGE,))
    for missing in (None, math.nan, "n/a", ""):
        design.check({"group": missing, "age": missing}, "north")
    design.check({"group": "control", "age": 1000}, "north")
    with pytest.raises(
        InputError, match="north: column 'group' has a value that is neither missing nor one of control"
    ):
        design.check({"group": "healthy", "age": 30}, "north")
    with pytest.raises(
        InputError, match="north: column 'age' has a value that is neither missing nor a number"
    ):
        design.check({"group": "control", "age": "old"}, "north")
    with pytest.raises(InputError, match="column 'age' is missing"):
        design.check({"group": "control"}, "north")


def test_a_number_may_have_its_own_centre():
    column = Column.of("age", (18, 90, 30))
    encoded = [float(column.encode(age)[0]) for age in (10, 18, 30, 60, 90, 200)]
    assert encoded == pytest.approx([-0.2, -0.2, 0, 0.5, 1, 1])
    assert column.unit == pytest.approx(1 / 60)
    plain = Column.of("age", (18, 90))
    assert [float(plain.encode(age)[0]) for age in (18, 54, 90)] == pytest.approx([-1, 0, 1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Column("a", low=2, high=1), "low < high"),
        (lambda: Column("a", "category", levels=("x",)), "two distinct levels"),
        (lambda: Column.of("a", 3), "must be a range"),
        (lambda: Column.of("a", (1, 2, 3)), "centre of column .a. must be between 1 and 2"),
        (lambda: Design(SCANNER), "must be a number or have two levels"),
        (lambda: Design(GROUP, (GROUP,)), "must have different names"),
        (lambda: Design(GROUP, mode="public-groups"), "group_sizes must be given"),
        (lambda: Design(AGE, (), "public-groups", {"a": (1, 1)}), "requires a contrast with two levels"),
        (lambda: Design(GROUP, (), "public-groups", {"a": (5, 0)}), "no site has subjects of both groups"),
        (lambda: Design(GROUP, (), "open"), "mode must be"),
    ],
)
def test_bad_designs_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_public_groups_are_said_to_be_unprotected():
    assert Design(GROUP).not_covered == ()
    public = Design(GROUP, (), "public-groups", {"a": (5, 5)})
    assert "not protected" in public.not_covered[0]
