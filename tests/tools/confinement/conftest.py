"""Folders that other users can enter, and a victim of the same user."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.confined import PACKAGE, copied_package, opened_to_others

VICTIM = """
import os
from capedjica.tools.confinement import process
process.drop_capability_bound()
process.drop_capabilities()
os.execv("/bin/sh", ["sh", "-c", "echo ready; exec sleep 600"])
"""


@pytest.fixture(scope="module")
def public():
    """A folder that everybody can enter, as those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="confinement-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wrapper(public):
    """What makes a command run where other users can run Python."""
    found = opened_to_others(public)
    if found is None:
        pytest.skip("other users cannot be tried out: that takes root, and an interpreter that they can read")
    return found


@pytest.fixture(scope="module")
def package(public):
    """A copy of the package that everybody can read."""
    return copied_package(public)


@pytest.fixture(scope="module")
def victim():
    """Another process of the same user, which has no more rights than those who attack it."""
    command = [sys.executable, "-c", VICTIM]
    variables = {"PYTHONPATH": str(PACKAGE.parent), "SECRET": "of the victim", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()
