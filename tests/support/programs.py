"""Programs that packages of the test environment bring along, wherever these were installed."""

import json
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import bids_validator_deno


def program(package, name):
    """The path of a program of a package."""
    found = distribution(package)
    return str(next(found.locate_file(path) for path in found.files if path.name == name))


def complaints(*command):
    """What a linter says; empty if it finds nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def bids_errors(folder):
    """Return the codes of errors found by the validator of the BIDS standard, without a network."""
    bundle = Path(bids_validator_deno.__file__).with_name("bids-validator.js")
    allowed = ["--allow-read", "--allow-env", "--no-remote"]
    said = subprocess.run(
        [program("deno", "deno"), "run", *allowed, bundle, "--format", "json", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout, said.stderr
    found = json.loads(said.stdout)["issues"]["issues"]
    return sorted({one["code"] for one in found if one["severity"] == "error"})
