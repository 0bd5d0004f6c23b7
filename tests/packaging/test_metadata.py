"""Files by which the package is found, installed and built: complete, and one with another."""

import configparser
import json
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.places import ROOT
from tests.support.programs import program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = ROOT / "deploy" / "requirements.lock"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Packages that have another name in conda.
CONDA = {"python-isal": "isal", "matplotlib-base": "matplotlib"}


def locked():
    """Version and hashes of every package of the lock file; the marker is ignored."""
    found = {}
    for entry in re.split(r"\n(?=\S)", LOCK.read_text("utf-8").strip()):
        head, *hashes = entry.replace("\\\n", "\n").split("\n")
        need = Requirement(head.strip())
        (pin,) = need.specifier
        assert pin.operator == "=="
        found[canonicalize_name(need.name)] = (Version(pin.version), [line.strip() for line in hashes])
    return found


def test_what_a_registry_shows_is_there():
    for key in ("description", "readme", "license", "authors", "keywords", "classifiers", "urls"):
        assert PROJECT[key]
    assert PROJECT["license-files"] == ["LICENSE"]
    versions = {line.split(" :: ")[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert versions == {"3.11", "3.12", "3.13"}
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / "src" / "capedjica" / "py.typed").exists()


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text("utf-8"))
    assert cited["version"] == recipe["context"]["version"] == PROJECT["version"]


# The lock file


def needs(extras=("federated", "web")):
    texts = [
        *PROJECT["dependencies"],
        *(text for one in extras for text in PROJECT["optional-dependencies"][one]),
    ]
    return [Requirement(text) for text in texts]


def test_every_dependency_is_locked_within_its_bounds():
    pins = locked()
    for need in needs():
        version, hashes = pins[canonicalize_name(need.name)]
        assert version in need.specifier, need
        assert hashes
    for _, hashes in pins.values():
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes)


def test_dependencies_of_dependencies_are_locked_too():
    """As far as they are installed here: nothing that is needed is missing."""
    pins, waiting, seen = locked(), [need.name for need in needs()], set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        assert name in pins
        try:
            own = map(Requirement, requires(name) or ())
        except PackageNotFoundError:
            continue
        waiting += [need.name for need in own if need.marker is None or need.marker.evaluate({"extra": ""})]


def test_the_lock_file_names_no_registry_and_builds_the_package():
    text = LOCK.read_text("utf-8")
    assert "://" not in text
    assert "index-url" not in text
    assert "hatchling" in locked()
    builder = ROOT.joinpath("deploy", "build.in").read_text("utf-8").splitlines()
    system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    assert [line for line in builder if not line.startswith("#")] == system["requires"]


def test_the_bill_of_materials_lists_what_is_locked(tmp_path):
    """By the command of `make sbom`, which also checks it against the schema."""
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"\$\(BIN\)/cyclonedx-py (.*)", text)
    words = command.replace("dist/", f"{tmp_path}/").split()
    subprocess.run(
        [program("cyclonedx-bom", "cyclonedx-py"), *words], cwd=ROOT, check=True, capture_output=True
    )
    bill = json.loads((tmp_path / "capedjica-sbom.json").read_text("utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == (PROJECT["name"], PROJECT["version"])
    listed = {canonicalize_name(one["name"]): one for one in bill["components"]}
    assert {name: Version(one["version"]) for name, one in listed.items()} == {
        name: version for name, (version, _) in locked().items()
    }
    for name, (_, hashes) in locked().items():
        (where,) = listed[name]["externalReferences"]
        assert {one["content"] for one in where["hashes"]} == {line.split(":")[1] for line in hashes}


# Conda


def test_the_conda_recipe_has_the_dependencies_and_programs_of_the_package():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text("utf-8"))
    assert set(recipe) == {
        "schema_version", "context", "package", "source", "build", "requirements", "tests", "about",
    }  # fmt: skip
    listed = [line.split(None, 1) for line in recipe["requirements"]["run"] if not line.startswith("__")]
    run = {CONDA.get(name, name): bounds for name, bounds in listed}
    assert run.pop("python") == PROJECT["requires-python"]
    assert {name: Requirement(name + bounds).specifier for name, bounds in run.items()} == {
        need.name: need.specifier for need in needs(())
    }
    programs = dict(line.split(" = ") for line in recipe["build"]["python"]["entry_points"])
    assert programs == PROJECT["scripts"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).exists()


# Continuous integration


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_make_and_nothing_else(path):
    """A developer can run the same; actions are pinned to a version, and may only read."""
    content = yaml.safe_load(path.read_text("utf-8"))
    # YAML 1.1 reads the key "on" as true.
    assert set(content) <= {"name", True, "permissions", "concurrency", "jobs"}
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
                continue
            make, target, *_ = step["run"].split()
            assert make == "make"
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_workflows_test_every_version_of_python():
    content = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    versions = {line.split(" :: ")[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert set(content["jobs"]["test"]["strategy"]["matrix"]["python"]) == versions


# Images


def sections():
    """Header and sections of the Apptainer definition."""
    text = (ROOT / "deploy" / "capedjica.def").read_text("utf-8")
    head, *parts = re.split(r"^%", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    parser = configparser.RawConfigParser(delimiters=(":",))
    parser.read_string(f"[head]\n{head}")
    return dict(parser["head"]), dict(part.split("\n", 1) for part in parts)


def test_the_apptainer_definition_has_the_base_and_steps_of_the_container_file(tmp_path):
    head, parts = sections()
    container = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    assert head["bootstrap"] == "docker"
    assert f"FROM {head['from']} AS build" in container
    assert set(parts) == {"files", "post", "environment", "runscript", "test", "labels", "help"}
    for source, target in (line.split() for line in parts["files"].strip().splitlines()):
        assert (ROOT / source).exists()
        assert target.startswith("/source/")
    for name in ("post", "environment", "runscript", "test"):
        script = tmp_path / name
        script.write_text(parts[name])
        subprocess.run(["sh", "-n", script], check=True)
    for installed in ("--require-hashes --requirement", "--no-deps --no-build-isolation"):
        assert installed in parts["post"]
        assert installed in container
    assert "never built" in (ROOT / "deploy" / "capedjica.def").read_text("utf-8")
