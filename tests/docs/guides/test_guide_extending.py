"""The guide to analyses of one's own: its package is the example's, and its commands lead to a median."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.federated.consortium import own_port
from tests.support.places import ROOT
from tests.support.private_median import MEDIAN, install, installed_median
from tests.support.shell import run_script

PAGE = (ROOT / "docs" / "user-guide" / "extending.md").read_text("utf-8")
PACKAGE, CHECK, IN_PYTHON, TRIAL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(COMMANDS,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
INSTALLING, BETWEEN = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def median_in(path):
    with open(path, newline="") as file:
        return float(next(csv.DictReader(file))["median"])


def test_the_package_is_the_example():
    assert (MEDIAN / "private_median.py").read_text() == PACKAGE
    assert (MEDIAN / "pyproject.toml").read_text() == PROJECT
    assert len([line for line in PACKAGE.splitlines() if line.strip()]) <= 50


def test_its_sensitivity_is_checked_and_it_runs_in_python(tmp_path, capsys):
    with installed_median(tmp_path / "packages"):
        exec(CHECK, {})
        assert "share above the middle: at most 1 of the claimed 1" in capsys.readouterr().out
        exec(IN_PYTHON, {})
        value, *told = capsys.readouterr().out.splitlines()
    assert 45 < float(value) < 55  # noise of 0.01 to 0.02 in a share moves the middle by half a year
    assert told


def test_it_runs_from_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with installed_median(tmp_path / "packages"):
        exec(TRIAL, {})
        run_script(COMMANDS, tmp_path)
    assert 45 < median_in(tmp_path / "median-run" / "median.csv") < 55
    assert (tmp_path / "median-run" / "report.html").exists()


@pytest.mark.full
def test_it_runs_between_hospitals(tmp_path):
    """On four FLARE sites with processes of their own, by the commands as they stand but for the port."""
    packages = tmp_path / "packages"
    packages.mkdir()
    install(packages)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    (tmp_path / "trial.py").write_text(TRIAL)
    text = "set -ex\npython trial.py\n" + BETWEEN.replace("8002", str(own_port()))
    try:
        ran = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        stop = "for site in north south east west; do capedjica site stop $site; done"
        subprocess.run(["bash", "-c", stop], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 45 < median_in(tmp_path / "joint" / "run" / "median.csv") < 55
