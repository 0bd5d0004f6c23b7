"""Doors between a carrier and what it must not reach that no other test tries."""

import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.workspace import point_to
from capedjica.site.flare import starting
from capedjica.site.home import SiteHome
from tests.attacks.flare.attacked import NOTHING, soon
from tests.federated.consortium import Consortium
from tests.support.small_study import make_study


@pytest.fixture(scope="module")
def parties():
    """A sealed study whose sites have their kits; sockets are in a folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="doors-"))
    with pytest.MonkeyPatch.context() as patch:
        (folder / "sockets").mkdir(mode=0o700)
        patch.setenv("CAPEDJICA_SOCKETS", str(folder / "sockets"))
        yield Consortium(make_study(folder / "study"))
    shutil.rmtree(folder)


def test_data_of_people_are_not_put_beside_an_unconfined_carrier(parties, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(starting, "strongest", lambda *_: NOTHING)
    home = SiteHome.create(tmp_path / "s1", "s1", 50.0, 20.0, 1e-5, simulated=False)
    with pytest.raises(InputError, match="--unconfined"):
        starting.choose(home, parties.kit("s1"))
    assert starting.choose(home, parties.kit("s1"), unconfined=True) == NOTHING


@pytest.mark.parametrize("link", ["a draft", "the settings", "the folder"])
def test_a_link_that_a_carrier_left_leads_its_owner_nowhere(tmp_path, link, monkeypatch):
    """Where the socket is, is written into a folder of the carrier's, by somebody who may write more."""
    workspace, victim = tmp_path / "workspace", tmp_path / "victim"
    (workspace / "local").mkdir(parents=True)
    victim.mkdir()
    (victim / "file").write_text("as it was")
    if link == "the folder":
        (workspace / "local").rmdir()
        (workspace / "local").symlink_to(victim)
        with pytest.raises(InputError, match="cannot be prepared for the carrier"):
            point_to(workspace, tmp_path / "socket")
    else:
        name = ".capedjica.json.draft" if link == "a draft" else "capedjica.json"
        # A carrier that is quick puts its link back whenever it is removed.
        monkeypatch.setattr("capedjica.flare.workspace._remove", lambda name, folder: None)
        (workspace / "local" / name).symlink_to(victim / "file")
        with pytest.raises(InputError) if link == "a draft" else nullcontext():
            point_to(workspace, tmp_path / "socket")
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "as it was"


WARNING = """
import sys, warnings
from pathlib import Path
from capedjica.site.agent import serving
from capedjica.site.home import SiteHome
serving._keep_the_console_clean(SiteHome.load(Path(sys.argv[1])))
warnings.warn("loadtxt: input contained no data: sub-0003.tsv")
serving._journal.warning("refused somebody")
"""


def test_a_warning_of_a_library_does_not_name_a_scan_on_the_console(parties):
    words = [sys.executable, "-W", "always", "-c", WARNING, str(parties.home("s1").folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "sub-0003" not in done.stdout + done.stderr
    assert "refused somebody" in done.stderr


ORPHANING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.rename(sys.argv[1], sys.argv[1] + ".pid")
        os.execv("/bin/sleep", ["another name", "600"])
    os._exit(0)
os.wait()
time.sleep(600)
"""


def test_what_a_carrier_leaves_running_is_ended(tmp_path):
    """Under another name, in another session, as nobody's child."""
    file = tmp_path / "orphan"
    program = processes.Program("carrier", (sys.executable, "-c", ORPHANING, str(file)), str(tmp_path))
    supervisor = processes.start(tmp_path, [program])
    try:
        told = file.with_suffix(".pid")
        pid = int(soon(lambda: told.exists() and told.read_text(), "the orphan was left"))
        soon(lambda: not psutil.pid_exists(pid), "the orphan is ended")
        assert processes.running(tmp_path) == supervisor
        assert len(psutil.Process(supervisor).children()) == 1
    finally:
        processes.stop(tmp_path)
