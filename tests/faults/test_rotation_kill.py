"""A change of key that is killed at any line: nothing spent is forgotten; the same command finishes it."""

import shutil
import subprocess
import sys

import pytest

from capedjica.privacy.ledger import WrongKeyError
from capedjica.site.home import SiteHome
from capedjica.site.key_rotation import rotate_key
from tests.privacy.ledger.ledger_site import ask, begin
from tests.support.places import ROOT


@pytest.fixture
def home(tmp_path):
    """A site that has spent something."""
    made = SiteHome.create(tmp_path / "site", "north", 50.0, 20.0, 1e-5, simulated=True)
    with made.open_ledger() as ledger:
        begin(ledger)
        ask(ledger, 0, mu=0.1234567)
    return made


def said(home):
    with home.open_ledger(must_exist=True) as ledger:
        ledger.verify_chain()
        return ledger.totals(), list(ledger.outbox())


def opens(home):
    try:
        home.open_ledger().close()
    except WrongKeyError:
        return False
    return True


def outcome(copy, before, old):
    """What a killed change of key left: the old key in force, neither, or the new one; then finish it."""
    home = SiteHome.load(copy)
    state = "old" if home.identity().public_key == old else "new"
    if state == "old" and not opens(home):
        state = "between"
        with pytest.raises(WrongKeyError, match="to complete it: capedjica site rotate-key"):
            said(home)
    else:
        assert said(home) == before
    if state != "new":
        assert home.identity().public_key == old
        changed = rotate_key(home)
        assert changed.old.public_key == old
    now = home.card()
    assert now.public_key != old
    assert home.card_path.read_text().strip() == now.card
    assert not home.next_identity_path.exists()
    assert said(home) == before
    return state


def die_at_lines(home, folder, stride):
    before, old = said(home), home.identity().public_key
    command, states = [sys.executable, "-m", "tests.faults.rotation_worker"], []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as worker:
        for step in range(1, 100_000, stride):
            copy = shutil.copytree(home.folder, folder / f"copy-{step}")
            worker.stdin.write(f"{copy} {step}\n")
            worker.stdin.flush()
            end = worker.stdout.readline().strip()
            states.append(outcome(copy, before, old))
            if end != "killed":
                assert end == "ended 0"
                worker.stdin.close()
                return states
            shutil.rmtree(copy)
    raise AssertionError("no change of key came to its end")


def check(states):
    """The old key up to the entry of the ledger, then neither, then the new one; and all three happened."""
    order = ["old", "between", "new"]
    assert states == sorted(states, key=order.index)
    assert set(states) == set(order)


def test_death_at_any_line(home, tmp_path):
    check(die_at_lines(home, tmp_path, stride=211))


@pytest.mark.full
def test_death_at_every_line(home, tmp_path):
    check(die_at_lines(home, tmp_path, stride=7))
