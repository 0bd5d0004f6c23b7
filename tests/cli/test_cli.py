"""The command line as a person meets it: output, errors, exit codes; some of it as real processes."""

import json
import re
import subprocess
import sys

import pytest

from capedjica.privacy.wording import round_up


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


@pytest.mark.parametrize("method", ["subject", "paper"])
def test_plan_table_and_json_have_the_same_numbers(method, cli):
    arguments = [*PLAN, "--method", method]
    table, numbers = cli(*arguments).stdout, json.loads(cli(*arguments, "--json").stdout)
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
    for name, title in {"exact": "exact", "naive": "naive composition"}.items():
        totals = (
            [numbers["epsilon"], numbers["epsilon_descent"]] if method == "paper" else [numbers["epsilon"]]
        )
        assert cells(table, title) == [round_up(total[name]) for total in totals]
    assert ("paper's RDP as printed" in table) == (method == "paper")
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


@pytest.mark.parametrize("method", ["subject", "paper"])
def test_plan_fits_an_eighty_column_terminal(method):
    assert max(map(len, narrow(*PLAN, "--method", method).splitlines())) <= 80


@pytest.mark.parametrize("method", ["subject", "paper"])
def test_a_narrow_terminal_never_shortens_a_number(method, cli):
    large = ["plan", "--epsilon", "1e5", "--features", "5000", "--iterations", "1000000", "--method", method]
    table, numbers = narrow(*large).splitlines(), json.loads(cli(*large, "--json").stdout)
    for stage in numbers["stages"]:
        below = table[table.index(f"  {stage['name']}") + 1].split()
        assert below[:2] == [f"{stage['n_values']:,}", f"{stage['n_releases']:,}"]
        assert below[-2:] == [round_up(stage["mu"]), round_up(stage["epsilon"])]


def test_plan_takes_one_number_of_subjects_per_site(cli):
    numbers = json.loads(cli("plan", "--subjects", "26,175,60", "--epsilon", "1", "--json").stdout)
    assert numbers["setting"]["subjects"] == [26, 175, 60]
    assert numbers["setting"]["n_sites"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "privacy.epsilon: expected a number of at least 1e-09, got 0.0"),
        (["--epsilon", "nan"], "privacy.epsilon: expected a number of at least 1e-09, got nan"),
        (["--epsilon", "1", "--delta", "1"], "privacy.delta: expected a number below 1, got 1.0"),
        (
            ["--epsilon", "1", "--colluding", "4"],
            "n_colluding must be less than the number of sites, 4; got 4",
        ),
        (
            ["--epsilon", "1", "--colluding", "many"],
            "privacy.n_colluding: 'many' is not known; known: third",
        ),
        (
            ["--epsilon", "1", "--subjects", "a,b"],
            "--subjects must be whole numbers separated by commas, got 'a,b'",
        ),
        (
            ["--epsilon", "1", "--sites", "4", "--subjects", "3,4"],
            "subjects must be one number or one per site (4), got 2 numbers",
        ),
        (
            ["--epsilon", "1", "--colluding=--5"],
            "privacy.n_colluding: '--5' is not known; known: third",
        ),
        (["--epsilon", "1e300"], "privacy.epsilon: expected a number of at most 1,000,000,000, got 1e+300"),
        (
            ["--epsilon", "1", "--iterations", "9" * 400],
            "analysis.max_iter: expected a whole number of at most 1,000,000, got 999",
        ),
        (["--epsilon", "1", "--mask", "wide"], "privacy.masking: 'wide' is not known; known: uniform, paper"),
        ([], "give one of a study.toml, --epsilon and --epsilon-per-iteration; got none of them"),
        (["--method", "paper", "--epsilon", "1", "--epsilon-per-iteration", "1"], "got both options"),
        (
            ["--epsilon-per-iteration", "1"],
            "is only for the paper's method; add --method paper",
        ),
        (
            ["--epsilon", "1", "--method", "papre"],
            "analysis.method: 'papre' is not known; did you mean paper?",
        ),
        (
            ["--epsilon", "1", "--image-shape", "30"],
            "--image-shape must be the height and width of an image, such as 30x30, got '30'",
        ),
        (
            ["--epsilon", "1", "--image-shape", "30x20", "--features", "900"],
            "features.image_shape [30, 20] has 600 pixels, but features.n_features is 900",
        ),
        (["--epsilon", "1", "--features", "100000"], "at most 16,777,216 are possible"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, cli):
    result = cli("plan", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_unknown_options_exit_with_2_and_no_traceback(cli):
    result = cli("plan", "--epsilom", "1")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_a_mistake_of_a_real_process_is_one_line_too():
    result = run("plan", "--epsilon", "0")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_help_and_version():
    assert "--epsilon-per-iteration" in run("plan", "--help").stdout
    assert re.fullmatch(r"capedjica \d+\.\d+\S*\n", run("--version").stdout)


def test_an_interruption_while_it_loads_is_no_traceback():
    """The first thing that the command line loads is as good as interrupted."""
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *others):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from capedjica.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "capedjica: interrupted\n")
