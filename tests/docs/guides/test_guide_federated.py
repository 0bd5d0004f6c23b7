"""The guides of coordinators and data managers, walked together: one study, each hospital on its own.

Commands that need the other guide are in blocks of ``sh``; how the two guides take turns is said here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study
from tests.docs.test_docs import ROOT
from tests.federated.consortium import own_port
from tests.support.command_lines import command_lines, parse

COORDINATOR = ROOT / "docs" / "user-guide" / "coordinator.md"
MANAGER = ROOT / "docs" / "user-guide" / "data-manager.md"
PAGES = [COORDINATOR, MANAGER, ROOT / "docs" / "user-guide" / "deployment.md", ROOT / "README.md"]
# Who is whose turn, by the numbers of the sections.
TURNS = [
    (COORDINATOR, (2, 3, 4, 5)),
    (MANAGER, (6,)),
    (COORDINATOR, (6,)),
    (MANAGER, (7,)),
    (COORDINATOR, (8,)),
    (MANAGER, (8,)),
]
PORT = "8002"


def sections(page):
    """The text of each numbered section."""
    parts = re.split(r"^## (\d+)\. .*\n", page.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}


def commands(text, language="sh"):
    return "".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def script():
    """All commands of both guides, in turns."""
    return "".join(commands(sections(page)[number]) for page, numbers in TURNS for number in numbers)


def test_every_command_has_its_turn():
    for page in (COORDINATOR, MANAGER):
        numbers = [number for other, some in TURNS if other == page for number in some]
        assert numbers == sorted(set(numbers))
        assert numbers == [number for number, text in sections(page).items() if commands(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_can_be_parsed(page):
    """Also those in the running text, which no test runs."""
    text = page.read_text("utf-8")
    fenced = "".join(commands(text, language) for language in ("sh", "bash"))
    spoken = re.findall(r"`(capedjica [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert spoken
    for line in command_lines(fenced):
        parse(line)
    for line in spoken:
        parse(line, named=True)


def walk(folder, port):
    """Type the commands into a shell, as they stand but for the port."""
    assert PORT in script()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    text = "set -ex\n" + script().replace(PORT, str(port))
    try:
        return subprocess.run(
            ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        for site in ("north", "south", "east", "west"):
            stop = [sys.executable, "-m", "capedjica", "site", "stop", site]
            subprocess.run(stop, cwd=folder, env=environment, capture_output=True, check=False)


@pytest.mark.full
def test_both_guides_lead_to_a_report(tmp_path):
    walked = walk(tmp_path, own_port())
    assert walked.returncode == 0, walked.stdout + walked.stderr
    for site in ("north", "south", "east", "west"):
        assert f"Site {site} is connected." in walked.stdout
    said = " ".join(walked.stdout.split())
    study = Study.load(tmp_path / "joint")
    headline = read_reliability(tmp_path / "joint" / "run", study, study.networks).headline
    assert f"{headline} from 64 participants at 4 sites in " in said
    assert said.count(" 16 yes yes - ") == 4
    assert "Site north was not running." in walked.stdout or "Disconnected site north" in walked.stdout
    assert "Joint networks" in (tmp_path / "joint" / "run" / "report.html").read_text("utf-8")
