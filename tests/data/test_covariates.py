"""What is known of a person besides their scans: a row that travels with them, and their motion."""

import numpy as np
import pytest

from capedjica.data.covariates import covariate_problems, covariates_of, mean_displacement, with_rows
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.participants import People
from capedjica.data.scans import Person, Recording

HEADER = "participant_id\tdiagnosis\tage\n"
ROWS = "sub-01\tpatient\t31\n02\tcontrol\tn/a\nsub-03\tcontrol\nsub-04\ta\t1\nsub-04\tb\t2\n"


def people(folder, text=HEADER + ROWS):
    (folder / "participants.tsv").write_text(text)
    return with_rows(
        [Person(f"sub-0{n}", (Recording(folder / f"sub-0{n}.npy"),)) for n in range(1, 6)], folder
    )


def test_a_row_travels_with_its_person(tmp_path):
    first, second, *_ = people(tmp_path)
    assert covariates_of(first) == {"participant_id": "sub-01", "diagnosis": "patient", "age": "31"}
    assert covariates_of(second)["diagnosis"] == "control"
    open_people = People([first, second], open_features(FeatureTable(), tmp_path, 3))
    assert open_people.covariates(0)["age"] == "31"


def test_whoever_has_no_row_of_use_has_no_covariates(tmp_path):
    """A short row, two rows, none; during a run that says nothing, before it the site is told."""
    _, _, short, twice, none = people(tmp_path)
    for person, words in ((short, "2 cells"), (twice, "in 2 rows"), (none, "no row of sub-05")):
        assert covariates_of(person) == {}
        (problem,) = covariate_problems(person, ["age"])
        assert words in str(problem)
        assert "count as zero" in str(problem)
        assert not problem.fatal


@pytest.mark.parametrize("content", ["", "\xff\xfe", "nobody\n1\n"])
def test_a_table_that_is_none_fails_nobody_during_a_run(tmp_path, content):
    person = people(tmp_path, content)[0]
    assert covariates_of(person) == {}
    (problem,) = covariate_problems(person, ["age"])
    assert problem.fatal


def test_without_the_table_nobody_can_be_compared(tmp_path):
    (person,) = with_rows([Person("sub-01", ())], tmp_path)
    assert covariates_of(person, motion=True) == {}
    (problem,) = covariate_problems(person, ["age"])
    assert problem.fatal
    assert "participants.tsv" in str(problem)


def test_a_column_that_is_not_there_is_named(tmp_path):
    (problem,) = covariate_problems(people(tmp_path)[0], ["age", "sex"])
    assert problem.fatal
    assert "no columns 'sex' among 'participant_id', 'diagnosis', 'age'" in str(problem)


def confounds(path, values):
    path.write_text("trans_x\tframewise_displacement\n" + "".join(f"0\t{value}\n" for value in values))
    return path


def test_motion_is_the_mean_displacement_over_all_runs(tmp_path):
    runs = [
        Recording(tmp_path / "a.nii", confounds(tmp_path / "a.tsv", ["n/a", 0.1, 0.3])),
        Recording(tmp_path / "b.nii", confounds(tmp_path / "b.tsv", ["n/a", 0.5])),
        Recording(tmp_path / "c.nii"),
    ]
    person = Person("sub-01", tuple(runs))
    assert mean_displacement(person) == pytest.approx(0.3)
    assert covariates_of(person, motion=True) == {"mean_fd": pytest.approx(0.3)}
    assert covariates_of(person) == {}


@pytest.mark.parametrize("values", [[], ["n/a"], [np.nan, np.inf, -1.0, "much"]])
def test_motion_that_nobody_wrote_down_is_none(tmp_path, values):
    person = Person("sub-01", (Recording(tmp_path / "a.nii", confounds(tmp_path / "a.tsv", values)),))
    assert mean_displacement(person) is None
    (problem,) = covariate_problems(person, [], motion=True)
    assert "framewise_displacement" in str(problem)
    assert not problem.fatal
