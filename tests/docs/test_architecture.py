"""ARCHITECTURE.md names files that exist, and the package keeps the shape that it describes."""

import importlib
import re
import subprocess

import pytest

from capedjica.study.analyses import GROUP as ENTRY_POINTS
from tests.support.places import ROOT

PACKAGE = ROOT / "src" / "capedjica"
MOST_MODULES = 15


def section(title: str) -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", ["One scan, from disk to report", "Where to change what"])
def test_every_file_it_names_exists(title):
    named = re.findall(r"`([\w/]+(?:/|\.py|\.jinja|\.html\.jinja|\.toml\.jinja))`", section(title))
    assert len(named) > 15
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_a_scan_takes_ten_steps_and_twenty_changes_have_their_place():
    steps = re.findall(r"^(\d+)\. ", section("One scan, from disk to report"), re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, 11))
    rows = re.findall(r"^\| (?!change|-)", section("Where to change what"), re.MULTILINE)
    assert len(rows) == 20


def test_no_folder_holds_more_than_fifteen_modules():
    for top in ("src", "tests", "benchmarks", "paper"):
        folders = {file.parent for file in (ROOT / top).rglob("*.py")}
        counts = {str(one): len([f for f in one.glob("*.py") if f.name != "__init__.py"]) for one in folders}
        assert {one: n for one, n in counts.items() if n > MOST_MODULES} == {}


def named_modules():
    """Yield files of the repository and the dotted names of this package that they mention."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a checkout of git")
    for file in listed.stdout.split():
        if not file.startswith(("docs/evidence/", "CHANGELOG")):
            text = (ROOT / file).read_text("utf-8")
            for name in set(re.findall(r"(?<![\w/.@-])capedjica(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?", text)):
                yield file, name


def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute, None)
        return found is not None
    return False


def test_every_module_that_anything_mentions_exists():
    """Moves leave no old name behind, in words either; names of files and loggers are no modules."""
    others = {"capedjica.json", "capedjica.org", "capedjica.run", "capedjica.service", "capedjica.toml"}
    others |= {"capedjica.def", "capedjica.sif"}
    # A logger of the agent's console, and the entry points of other packages' analyses.
    others |= {"capedjica.agent", ENTRY_POINTS}
    missing = {(file, name) for file, name in named_modules() if name not in others and not exists(name)}
    assert missing == set()
