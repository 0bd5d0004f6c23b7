"""The page about the life of a consortium: its commands are run in order, and what it says is looked at."""

import math
import re
import shutil
import sqlite3

import pytest

from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.securesum.identity import Identity
from capedjica.site.consent.consents import standing
from capedjica.site.home import SiteHome
from capedjica.site.participants.enrolment import read_enrolment
from tests.docs.test_docs import ROOT
from tests.support.command_lines import command_lines, parse
from tests.support.shell import run_script

PAGE = ROOT / "docs" / "user-guide" / "consortium-life.md"
TEXT = PAGE.read_text("utf-8")


def script():
    return "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """Where the page leads to from an empty folder, and what was said on the way."""
    pytest.importorskip("nvflare")
    folder = tmp_path_factory.mktemp("life")
    return folder, run_script(script(), folder)


def test_every_command_line_can_be_parsed():
    spoken = re.findall(r"`(capedjica\s[^`]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))
    assert len(spoken) > 10
    for line in [*command_lines(script().replace("$(ls trial/sites/site-2/studies)", "0123")), *spoken]:
        parse(re.sub(r"\s+", " ", line))


def test_what_the_commands_say(walked):
    _, said = walked
    for words in (
        "sub-0003 withdrew on 20",
        "cannot be recalled, and results are not recomputed",
        "1 withdrew their consent: their data are not read",
        "Site site-1 has a new key.",
        "The ledger is valid",
        "All earlier kits have stopped working",
        "Removed the kit of study",
    ):
        assert words in said


def test_what_is_there_afterwards(walked):
    folder, _ = walked
    home = SiteHome.load(folder / "trial" / "sites" / "site-1")
    assert "sub-0003" in read_enrolment(home).enrolled
    (old,) = home.folder.glob("identity-*.pem")
    assert Identity.load(old).public_key != home.identity().public_key
    assert not list((folder / "trial" / "sites" / "site-2" / "studies").iterdir())


def test_what_was_spent_can_be_read_without_the_key(walked):
    """The statement of the page on the real file, and the limits that it says to begin anew with."""
    folder, _ = walked
    home = SiteHome.load(folder / "trial" / "sites" / "site-1")
    (statement,) = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    with sqlite3.connect(home.ledger_path) as file:
        ((spent,),) = file.execute(statement).fetchall()
    assert spent == pytest.approx(home.totals().overall.mu2, rel=1e-12)
    cap = home.policy.total
    left = gaussian_epsilon(math.sqrt(gaussian_mu(cap.epsilon, cap.delta) ** 2 - spent), cap.delta)
    assert 0 < left < cap.epsilon


def test_lines_for_files_of_a_site_are_read(walked, tmp_path):
    """A withdrawal made by mistake, and a revoked key."""
    folder, _ = walked
    mistake, revoked = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    copy = shutil.copytree(folder / "trial" / "sites" / "site-1", tmp_path / "site-1")
    assert set(standing(SiteHome.load(copy))) == {"sub-0003"}
    (copy / "withdrawn.toml").write_text(f"schema = 1\n{mistake}")
    text = (copy / "site.toml").read_text("utf-8")
    assert text.count("[policy]\n") == 1
    (copy / "site.toml").write_text(text.replace("[policy]\n", revoked))
    home = SiteHome.load(copy)
    assert standing(home) == {}
    (key,) = home.settings.policy.revoked
    assert [len(group) for group in key.split()] == [4] * 13
