"""Every command and every example of the documentation is run."""

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys

import pytest

import capedjica
from capedjica.study.analyses import GROUP as ENTRY_POINTS
from tests.support.command_lines import command_lines, parse
from tests.support.places import ROOT
from tests.support.shell import run_script

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDES = [page for page in PAGES if page.parent.name == "user-guide"]
# Guides with their own test, which also checks the output.
OWN_TEST = {
    "scans.md": "tests/docs/guides/test_guide_scans.py",
    "getting-started.md": "tests/docs/guides/test_guide_ten_minutes.py",
    "findings.md": "tests/docs/guides/test_guide_findings.py",
    "extending.md": "tests/docs/guides/test_guide_extending.py",
}


def blocks(language, pages=PAGES):
    for page in pages:
        for number, block in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        ):
            yield pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")


# Tests of blocks in other languages, which need more than one page, a network or files of a site.
OTHER_LANGUAGES = {
    ("README.md", "sh"): "tests/federated/test_flare_full.py",
    ("analyses.md", "toml"): "tests/docs/test_analyses_page.py",
    ("consortium-life.md", "sh"): "tests/docs/test_consortium_life.py",
    ("consortium-life.md", "sql"): "tests/docs/test_consortium_life.py",
    ("consortium-life.md", "toml"): "tests/docs/test_consortium_life.py",
    ("coordinator.md", "sh"): "tests/docs/guides/test_guide_federated.py",
    ("data-manager.md", "sh"): "tests/docs/guides/test_guide_federated.py",
    ("extending.md", "sh"): "tests/docs/guides/test_guide_extending.py",
    ("extending.md", "toml"): "tests/docs/guides/test_guide_extending.py",
    ("findings.md", "toml"): "tests/docs/guides/test_guide_findings.py",
    ("getting-started.md", "sh"): "tests/docs/guides/test_guide_ten_minutes.py",
    ("getting-started.md", "toml"): "tests/docs/guides/test_guide_ten_minutes.py",
    ("web.md", "sh"): "tests/web/test_server.py",
}


def test_every_block_is_run_by_a_test():
    """Blocks of bash and Python are run here; "text" shows files and output, and Sphinx fills in the rest."""
    found = {
        (page.name, language)
        for page in PAGES
        for language in re.findall(
            r"^ *```([\w{]*).*?\n.*?^ *```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
    }
    assert {
        one for one in found if one[1] not in ("bash", "python", "text", "{toctree", "{struct", "{commands")
    } == set(OTHER_LANGUAGES)
    assert all((ROOT / test).exists() for test in [*OTHER_LANGUAGES.values(), *OWN_TEST.values()])


def test_the_commands_of_the_web_page_exist():
    for block in blocks("sh", [ROOT / "docs" / "user-guide" / "web.md"]):
        for line in command_lines(block.values[0]):
            parse(line)


@pytest.mark.parametrize("block", list(blocks("bash", [page for page in PAGES if page not in GUIDES])))
def test_commands(block, tmp_path):
    """The commands of a block, in order, from an empty folder; one by itself as a process of its own."""
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    if len(commands) > 1 and all(command[0] == "capedjica" for command in commands):
        run_script(block, tmp_path)
        return
    for command in commands:
        # make is run by continuous integration; here: the target exists and its steps can be listed
        if command[0] == "make":
            subprocess.run(["make", "--dry-run", *command[1:]], cwd=ROOT, check=True, capture_output=True)
            continue
        assert command[0] == "capedjica", f"no way to test {command}"
        subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize(
    "page",
    [page for page in GUIDES if page.name not in OWN_TEST and "```bash\n" in page.read_text("utf-8")],
    ids=lambda page: page.name,
)
def test_guide(page, tmp_path):
    """All commands of a guide, in order, from an empty folder."""
    run_script("\n".join(parameter.values[0] for parameter in blocks("bash", [page])), tmp_path)


@pytest.mark.parametrize(
    "code", list(blocks("python", [page for page in PAGES if page.name != "extending.md"]))
)
def test_example(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_sites_by_position(page):
    """The other way, --site, stays for scripts."""
    assert not re.search(r"\b(site|ledger) [a-z-]+ .*--site ", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        if not target.startswith(("http", "mailto")):
            # Pages of the gallery are written by the build, from examples of their names.
            target = re.sub(r"^\.\./gallery/(plot_\w+)\.rst$", r"../../examples/\1.py", target)
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_and_modules_named_in_the_text_exist(page):
    text = page.read_text("utf-8")
    for path in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    for name in set(re.findall(r"`(capedjica(?:\.\w+)+)`", text)) - {ENTRY_POINTS}:
        pkgutil.resolve_name(name)


def modules():
    return [
        info.name
        for info in pkgutil.walk_packages(capedjica.__path__, "capedjica.")
        if "__main__" not in info.name
    ]


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_project_speaks_of_the_project_alone():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    forbidden = re.compile("|".join(["/wo" + "rk/", r"\.\./sha" + "red", "/ro" + "ot/"]))
    for name in tracked:
        if name.endswith((".py", ".md", ".toml", ".txt", ".json", ".cff")) and (ROOT / name).exists():
            assert not forbidden.search((ROOT / name).read_text("utf-8")), name
