"""What is loaded before it is needed: an import waits for no library that only some calls use."""

import subprocess
import sys

import pytest


def loaded_by(program: str) -> set[str]:
    program += "; import sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_an_import_of_an_estimator_loads_no_pictures_and_no_solvers():
    loaded = loaded_by("from capedjica import CapeDJICA, private_glm")
    assert "capedjica.estimators.djica" in loaded
    assert not loaded & {"jinja2", "matplotlib", "nilearn", "pandas", "sklearn"}
    assert not loaded & {"scipy.optimize", "scipy.signal", "scipy.stats"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_no_arrays(option):
    run = f"import sys; sys.argv[1:] = ['{option}']; from capedjica.__main__ import main"
    loaded = loaded_by(f"{run}; from contextlib import suppress\nwith suppress(SystemExit): main()\npass")
    assert "typer" in loaded
    assert not loaded & {"numpy", "numba", "scipy", "matplotlib", "cryptography"}
