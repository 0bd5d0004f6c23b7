"""The command line as a person meets it: real processes, output, errors, exit codes."""

import json
import re
import subprocess
import sys

import pytest

from capedjica.privacy.statement import round_up


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "capedjica", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "", "COLUMNS": "200", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        timeout=120,
        check=False,
        **options,
    )


PLAN = ["plan", "--sites", "4", "--subjects", "1024", "--components", "20", "--epsilon", "2"]


def cells(text, start):
    """The numbers of the first line that begins with ``start``."""
    line = next(line for line in text.splitlines() if line.strip().startswith(start))
    return re.findall(r"[-+0-9.,e]*\d|–", line.strip()[len(start) :])


def test_plan_table_and_json_have_the_same_numbers():
    table, numbers = run(*PLAN).stdout, json.loads(run(*PLAN, "--json").stdout)
    assert numbers["setting"]["n_features"] == 900
    for stage in numbers["stages"]:
        assert cells(table, stage["name"]) == [
            f"{stage['n_values']:,}",
            f"{stage['n_releases']:,}",
            f"{stage['clip']:.4g}",
            f"{stage['noise']:.4g}",
            f"{stage['noise_norm']:.4g}",
            round_up(stage["mu"]),
            round_up(stage["epsilon"]),
        ]
    for name, title in {"exact": "exact (the guarantee)", "naive": "naive composition"}.items():
        assert cells(table, title) == [
            round_up(numbers["epsilon"][name]),
            round_up(numbers["epsilon_gradient"][name]),
        ]
    for name, row in numbers["comparison"].items():
        assert cells(table, name) == [
            f"{row['variance_at_equal_epsilon']:.4g}",
            round_up(row["epsilon_at_equal_noise"]),
        ]
    assert f"epsilon {round_up(numbers['one_more_site']['epsilon_at_equal_noise'])} at this" in table


def narrow(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "capedjica", *arguments],
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        timeout=120,
        check=True,
    ).stdout


def test_plan_fits_an_eighty_column_terminal():
    assert max(map(len, narrow(*PLAN).splitlines())) <= 80


def test_a_narrow_terminal_never_shortens_a_number():
    whole_brain = ["plan", "--epsilon", "1e5", "--features", "228453", "--iterations", "1000000"]
    table, numbers = narrow(*whole_brain), json.loads(run(*whole_brain, "--json").stdout)
    for stage in numbers["stages"]:
        assert cells(table, stage["name"])[-2:] == [round_up(stage["mu"]), round_up(stage["epsilon"])]


def test_plan_takes_one_number_of_subjects_per_site():
    numbers = json.loads(run("plan", "--subjects", "26,175,60", "--epsilon", "1", "--json").stdout)
    assert numbers["setting"]["subjects"] == [26, 175, 60]
    assert numbers["setting"]["n_sites"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "epsilon must be a finite number above 0, got 0.0"),
        (["--epsilon", "nan"], "epsilon must be a number, got nan"),
        (["--epsilon", "1", "--delta", "1"], "delta must lie strictly between 0 and 1, got 1.0"),
        (
            ["--epsilon", "1", "--colluding", "4"],
            "n_colluding must be less than the number of sites, 4; got 4",
        ),
        (
            ["--epsilon", "1", "--colluding", "many"],
            "n_colluding must be a whole number or 'third', got 'many'",
        ),
        (
            ["--epsilon", "1", "--subjects", "a,b"],
            "subjects must be whole numbers separated by commas, got 'a,b'",
        ),
        (
            ["--epsilon", "1", "--sites", "4", "--subjects", "3,4"],
            "subjects must be one number or one per site, 4; got 2 numbers",
        ),
        (
            ["--epsilon", "1", "--colluding=--5"],
            "n_colluding must be a whole number or 'third', got '--5'",
        ),
        (["--epsilon", "1e300"], "epsilon must lie between 1e-09 and 1e+09, got 1e+300"),
        (
            ["--epsilon", "1", "--iterations", "9" * 400],
            "iterations must be a number below 1.8e308, got a larger one",
        ),
        (["--epsilon", "1", "--mask", "wide"], "mask must be 'uniform' or 'paper', got 'wide'"),
        ([], "give either --epsilon or --epsilon-per-iteration, got neither"),
        (["--epsilon", "1", "--epsilon-per-iteration", "1"], "got both"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message):
    result = run("plan", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_unknown_options_exit_with_2_and_no_traceback():
    result = run("plan", "--epsilom", "1")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_help_and_version():
    assert "--epsilon-per-iteration" in run("plan", "--help").stdout
    assert re.fullmatch(r"capedjica \d+\.\d+\S*\n", run("--version").stdout)
