"""Wheel and sdist: built, checked, and installed in empty environments, where the demo needs no network."""

import glob
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.full
VERSIONS = ("3.11", "3.12", "3.13")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def interpreter(version):
    """A Python of this version: on the path, or one that pyenv installed."""
    places = [shutil.which(f"python{version}")]
    places += sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}")))
    works = (
        place
        for place in filter(None, places)
        if subprocess.run([place, "-c", "import ssl"], capture_output=True, check=False).returncode == 0
    )
    return next(works, None)


def test_both_are_valid_and_have_what_they_should(built):
    names = sorted(path.name for path in built.iterdir())
    assert [name.split("-")[0] for name in names] == ["capedjica", "capedjica"]
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir()))
    (wheel,) = built.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith(("capedjica/", "capedjica-")) for name in inside)
    assert {"capedjica/py.typed", "capedjica/report/templates/style.css"} <= set(inside)
    tracked = run("git", "ls-files", "src", cwd=ROOT).split()
    assert {name.removeprefix("src/") for name in tracked} <= set(inside)


def test_the_sdist_has_all_that_its_tests_need(built, tmp_path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    given = os.environ | {"PYTHONPATH": str(source / "src")}
    tests = ["tests/packaging/test_metadata.py", "tests/docs/test_deploy.py", "tests/test_metrics.py"]
    run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-m",
        "full or not full",
        cwd=source,
        env=given,
    )
    run(sys.executable, "-m", "pytest", "-q", *tests, cwd=source, env=given)
    links = ["tests/docs/test_docs.py", "-k", "links or named"]
    run(sys.executable, "-m", "pytest", "-q", *links, cwd=source, env=given)


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_environment_runs_the_demo_without_network(built, version, kind, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    (package,) = built.glob(kind)
    run(python, "-m", "venv", tmp_path / "empty")
    place = tmp_path / "empty" / "bin"
    run(place / "python", "-m", "pip", "install", "--quiet", "--no-compile", package)
    run(place / "python", "-m", "pip", "check")
    # An own network namespace without an interface, in which nothing can be reached.
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this system has no network namespaces")
    empty = {"PATH": f"{place}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    outside = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    reached = subprocess.run([*alone, place / "python", "-c", outside], capture_output=True, check=False)
    assert b"Network is unreachable" in reached.stderr
    said = run(*alone, place / "capedjica", "demo", cwd=tmp_path, env=empty)
    assert "epsilon" in said
    assert list(Path(tmp_path, "capedjica-demo").iterdir())
    assert "capedjica-bids" in run(place / "capedjica-bids", "--version", env=empty)
    shutil.rmtree(tmp_path / "empty")  # hundreds of megabytes
