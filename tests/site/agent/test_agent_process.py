"""The agent as a process: what it listens to, what it has no way to, and what is left when it is killed."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from capedjica.coordinator.run.aggregation import conduct
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.watcher import Watcher
from capedjica.flare.launch import FINAL_CODE
from capedjica.flare.link import LinkError, socket_path
from capedjica.flare.parcels import write_notice
from capedjica.mechanisms.messages import Answer, Status, Unknown, question_hash, read_reply
from capedjica.one_machine.local_run import find_sites
from capedjica.site.agent.owner_commands import standing
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from tests.site.agent.agents import agent_process, asked, hello, party_of, read
from tests.site.agent.test_party import coordinators_key, notice
from tests.support.waiting import wait_for


def test_an_agent_answers_a_greeting_with_a_signed_status(ready, study):
    with agent_process(ready, carrier="landlock") as agent:
        data = asked(agent.receive, study, hello(study))
        reply = read(study, hello(study), data)
        assert (type(reply), reply.sender, reply.carrier) == (Status, "s1", "landlock")
        assert asked(agent.receive, study, hello(study), again=True) == data
        assert read(study, b"never put", asked(agent.receive, study, b"never put", again=True)) == Unknown(
            reply.version, reply.contract, "s1"
        )
        assert agent.receive(b"no parcel") == b""
    assert "agent started" in (ready.folder / "site.log").read_text()


def test_an_agent_disconnects_when_the_study_is_over(ready, study):
    """Not in the middle of a job, which would end it for all; and its supervisor starts nothing again."""
    with agent_process(ready) as agent:
        forged = write_notice(notice(study))
        assert agent.receive(forged) == b""
        assert isinstance(read(study, hello(study), asked(agent.receive, study, hello(study))), Status)
        assert agent.receive(write_notice(notice(study, coordinators_key(study)))) == b""
        assert standing(agent.kit).connected
        assert agent.process.poll() is None
        assert agent.wait() == FINAL_CODE
    assert agent.said == "the coordinator has ended the study; this site disconnects\n"
    assert ready.is_over(study.hash.hex())
    # Both records: one goes with the kit, the other stays when the kit is forgotten.
    assert (ready.approved_path / f"{study.hash.hex()[:16]}.over").exists()


def test_an_agent_is_found_by_any_name_of_its_folder(ready, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(ready.folder)
    with agent_process(ready):
        monkeypatch.chdir(ready.folder.parent)
        name = ready.folder.name
        for path in (name, f"../{ready.folder.parent.name}/{name}", str(link)):
            assert standing(kits.find_kit(SiteHome.load(path))) is not None, path


def test_the_agents_process_has_no_network(ready):
    """The system shows it: its network is another than ours, in which there is nothing."""
    with agent_process(ready) as agent:
        own, its = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", agent.process.pid))
        words = standing(agent.kit).network
        if "no TCP, by Landlock" in words:
            pytest.skip("this system gives it no namespace; what Landlock does is tested by itself")
        assert "no network" in words
        assert own != its
        devices = Path(f"/proc/{agent.process.pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]


def test_one_carrier_at_a_time(ready, study):
    with agent_process(ready) as agent:
        first = agent.connect()
        with pytest.raises(LinkError, match="another carrier is connected: one at a time"):
            agent.connect()
        assert standing(agent.kit).connected
        first.close()
        wait_for(lambda: not standing(agent.kit).connected)
        assert isinstance(read(study, hello(study), asked(agent.receive, study, hello(study))), Status)
    assert "one at a time" in (ready.folder / "site.log").read_text()


def test_another_role_is_refused_at_the_carriers_socket(ready):
    with agent_process(ready) as agent:
        for role in ("owner", "relay", ""):
            with pytest.raises(LinkError, match="this socket is for the carrier, not for"):
                agent.connect(role)
        agent.connect().close()


@pytest.mark.skipif(os.geteuid() != 0, reason="whom the system shows depends on namespaces")
def test_a_carrier_of_another_user_is_refused(ready):
    """The agent was told which user its carrier is."""
    words = "user 0 may not connect here; expected 61234"
    with agent_process(ready, carrier="user", uid="61234") as agent, pytest.raises(LinkError, match=words):
        agent.connect()


def test_a_carrier_that_sends_nonsense_is_cut_off_and_the_next_is_served(ready, study):
    with agent_process(ready) as agent:
        path = socket_path(agent.kit.path, "carrier")
        for junk in (b"\xff" * 100, b"", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(path))
                line.sendall(junk)
        assert isinstance(read(study, hello(study), asked(agent.receive, study, hello(study))), Status)


def test_what_is_wrong_with_a_scan_is_in_the_sites_own_log_alone(ready, study):
    """Not in what the agent prints, nor in anything of the carrier's."""
    np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
    with agent_process(ready) as agent:
        data = asked(agent.receive, study, hello(study))
        assert b"sub-03" not in data
        assert agent.end(signal.SIGTERM) == 0
        assert "sub-03" not in agent.said
        carried = [path for path in agent.kit.workspace.rglob("*") if path.is_file()]
        assert carried
        assert not [path for path in carried if b"sub-03" in path.read_bytes()]
    assert "the first is sub-03" in (ready.folder / "site.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_told_to_end_ends_cleanly(ready, number):
    with agent_process(ready) as agent:
        assert agent.end(number) == 0
        assert not socket_path(agent.kit.path, "carrier").exists()
        assert not socket_path(agent.kit.path, "owner").exists()
    assert "agent ended" in (ready.folder / "site.log").read_text()
    assert "Traceback" not in (ready.folder / "site.log").read_text()


def test_two_agents_of_a_study_do_not_run_at_once(ready):
    with agent_process(ready) as agent:
        command = [sys.executable, "-m", "capedjica.site.agent", str(agent.kit.path), "none"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == FINAL_CODE
        (line,) = done.stderr.splitlines()
        assert "is already in use: another process listens there" in line
        # The first one's token stays good.
        assert standing(agent.kit) is not None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda kit: (kit.path / "kit.json").unlink(), "cannot be read: No such file"),
        (lambda kit: (kit.path / "kit.json").write_text("{}"), "is not a kit of this version"),
        (lambda kit: (kit.path / "study" / "study.toml").unlink(), "study.toml"),
    ],
)
def test_an_agent_that_cannot_work_says_why_in_one_line(ready, spoil, words):
    kit = kits.find_kit(ready)
    spoil(kit)
    command = [sys.executable, "-m", "capedjica.site.agent", str(kit.path), "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == FINAL_CODE
    (line,) = done.stderr.splitlines()
    assert words in line


def test_an_agent_of_another_protocol_or_confinement_is_refused(ready):
    kit = kits.find_kit(ready)
    command = [sys.executable, "-m", "capedjica.site.agent", str(kit.path)]
    done = subprocess.run([*command, "magic"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, "got 'magic'" in done.stderr) == (FINAL_CODE, True)
    file = kit.path / "kit.json"
    file.write_text(file.read_text().replace(f'"protocol": {kit.label.protocol}', '"protocol": 9'))
    done = subprocess.run([*command, "none"], capture_output=True, text=True, timeout=300)
    assert done.returncode == FINAL_CODE
    assert f"version 9 of the protocol, this program speaks version {kit.label.protocol}" in done.stderr


class Killed:
    """Carries a study's questions; the first site is a process, which is killed after one of its answers."""

    def __init__(self, study, ready, parties, starting, after):
        self.study, self.home, self.parties, self.starting, self.left = study, ready, parties, starting, after
        self.agent = starting()
        self.repeated = None

    def exchange(self, questions):
        replies = {n: self.parties[n].handle(q) for n, q in questions.items() if n != "s1"}
        if "s1" in questions:
            replies["s1"] = self._ask(questions["s1"])
        return replies

    def _ask(self, question):
        data = asked(self.agent.receive, self.study, question)
        if isinstance(read(self.study, question, data), Answer):
            self.left -= 1
            if self.left == 0:
                self._kill(question, data)
        return data

    def _kill(self, question, data):
        """Kill the agent, start it again, and ask as if the answer had got lost."""
        spent = self.home.totals().overall
        assert self.agent.end(signal.SIGKILL) == -signal.SIGKILL
        self.agent = self.starting()
        again = asked(self.agent.receive, self.study, question)
        self.repeated = (data == again, spent == self.home.totals().overall, spent.n_releases)


def test_an_agent_that_was_killed_answers_again_with_the_same_bytes_and_charges_nothing(
    ready, study, tmp_path, sockets
):
    """The release that may have got lost is handed out as it was; the study goes on to its end."""
    homes = {home.settings.name: home for home in find_sites(study, study.folder / "sites")}
    for name in ("s2", "s3", "s4"):
        with kits.received(homes[name], study.folder / "federation" / "kits" / f"{name}.zip") as (
            given,
            keep,
        ):
            approve(homes[name], given)
            keep()
    folder = RunFolder(tmp_path / "run")
    with ExitStack() as held:
        parties = {}
        for name in ("s2", "s3", "s4"):
            parties[name] = party_of(homes[name], study)
            held.callback(parties[name].close)
        line = Killed(study, ready, parties, lambda: held.enter_context(agent_process(ready)), after=3)
        with folder.claim(study) as state:
            conduct(study, folder, state, line.exchange, None, Watcher())
    assert folder.state().complete
    assert line.repeated == (True, True, 3)
    n_means = sum(stage.count for stage in study.contract.stages)
    assert ready.totals().overall.n_releases >= n_means


def test_a_reply_cannot_be_had_for_another_question(ready, study):
    with agent_process(ready) as agent:
        data = asked(agent.receive, study, hello(study))
        with pytest.raises(Exception, match="not signed"):
            read_reply(data, study.contract, "s1", question_hash(hello(study, 1)))
