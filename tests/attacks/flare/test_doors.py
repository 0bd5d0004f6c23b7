"""Each door between a carrier and the agent by itself, in one process where that is enough."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import psutil
import pytest

from capedjica.coordinator.flare.courier import Courier, Patience
from capedjica.errors import InputError
from capedjica.flare import launch, processes
from capedjica.flare.kit import PROTOCOL, STARTUP, Label
from capedjica.flare.link import (
    VERSION,
    Caller,
    Channel,
    Greeting,
    LinkError,
    Listener,
    answer_calls,
    connect,
    socket_path,
)
from capedjica.flare.parcels import Notice, write_notice
from capedjica.flare.workspace import point_to
from capedjica.mechanisms.messages import VERSION as MESSAGES
from capedjica.mechanisms.messages import Ask, Refusal, SlotPlan, encode, question_hash, sign_reply
from capedjica.securesum.identity import Identity
from capedjica.site.agent.owner import OwnersDesk, Standing, standing
from capedjica.site.agent.serving import Agent
from capedjica.site.flare import kits, starting
from capedjica.site.home import SiteHome
from capedjica.tools.confinement.carrier import Confinement
from tests.attacks.flare.attacked import NOTHING, soon
from tests.federated.consortium import Consortium
from tests.federated.sealed import rezip, unzip
from tests.support.small_study import make_study

LIMIT = 1000


@pytest.fixture(scope="module")
def parties():
    """A sealed study whose sites have their kits; sockets are in a folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="doors-"))
    with pytest.MonkeyPatch.context() as patch:
        (folder / "sockets").mkdir(mode=0o700)
        patch.setenv("CAPEDJICA_SOCKETS", str(folder / "sockets"))
        yield Consortium(make_study(folder / "study"))
    shutil.rmtree(folder)


# Frames


@pytest.fixture
def line():
    """Both ends of a connection: a channel, and what somebody sends into it by hand."""
    own, other = socket.socketpair()
    with own, other:
        yield Channel(own, LIMIT), other


def test_a_frame_that_is_too_long_is_not_waited_for(line):
    channel, other = line
    other.sendall(struct.pack(">I", LIMIT + 1))
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkError, match="1,001 bytes was announced"):
        channel.receive()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 900, b"\x93\xa4Call\x01", b"\xff" * 100])
def test_a_frame_that_cannot_be_read_ends_the_connection_and_nothing_else(line, body):
    channel, other = line
    other.sendall(struct.pack(">I", len(body)) + body)
    with pytest.raises(LinkError, match="cannot be read"):
        answer_calls(channel, lambda data: data)


# Who connects


@contextmanager
def listening(uids):
    folder = Path(tempfile.mkdtemp())
    refused = []
    listener = Listener(
        folder / "x.carrier", LIMIT, uids, lambda _: "", lambda channel, _: channel.close(), refused.append
    )
    try:
        yield listener.path, refused
    finally:
        listener.close()
        shutil.rmtree(folder)


def test_who_connects_is_known_by_the_system():
    greeting = Greeting(VERSION, "carrier")
    with listening({os.getuid() + 1}) as (path, refused):
        with pytest.raises(LinkError, match=f"user {os.getuid()} may not connect here"):
            connect(path, greeting, LIMIT)
        assert len(refused) == 1
    with listening({os.getuid()}) as (path, refused):
        connect(path, greeting, LIMIT).close()
        assert refused == []


def test_the_owners_socket_is_for_who_has_the_token(parties, tmp_path):
    refused = []
    desk = OwnersDesk(parties.home("s1"), tmp_path, lambda: Standing("", "", False, None), refused.append)
    path, token = socket_path(tmp_path, "owner"), (tmp_path / "owner.token").read_bytes()
    try:
        for guess in (b"", bytes(32), token[:-1], token + b"\0"):
            with pytest.raises(LinkError, match="for the site's owner alone"):
                connect(path, Greeting(VERSION, "owner", guess), LIMIT)
        assert (tmp_path / "owner.token").stat().st_mode & 0o077 == 0
        connect(path, Greeting(VERSION, "owner", token), LIMIT).close()
        assert len(refused) == 4
    finally:
        desk.close()


# The agent


@pytest.fixture
def agent(parties):
    """An agent in this process, and how to reach it."""
    home, kit = parties.home("s1"), parties.kit("s1")
    made = Agent(home, kit, "none", os.getuid(), "nothing")
    yield socket_path(kit.path, "carrier")
    made.close()
    (kit.path / "over.txt").unlink(missing_ok=True)


def test_a_second_carrier_is_turned_away_while_the_first_is_there(agent):
    greeting = Greeting(VERSION, "carrier")
    first = connect(agent, greeting, LIMIT)
    with pytest.raises(LinkError, match="one at a time"):
        connect(agent, greeting, LIMIT)
    first.close()
    soon(lambda: is_let_in(agent, greeting), "the next is let in")


def is_let_in(path, greeting):
    try:
        connect(path, greeting, LIMIT).close()
    except LinkError:
        return False
    return True


def test_nobody_but_the_coordinator_ends_a_study(parties, agent):
    over = parties.place("s1") / "over.txt"
    caller = Caller(connect(agent, Greeting(VERSION, "carrier"), LIMIT))
    notice = Notice(MESSAGES, parties.study.hash, "over", "2031-01-01T00:00:00+00:00")
    coordinator = parties.federation.key()
    for key, study in ((Identity.generate(), parties.study.hash), (coordinator, bytes(32))):
        assert caller.call(signed(notice, key, study), 60.0) == b""
        assert not over.exists()
    caller.call(signed(notice, coordinator, parties.study.hash), 60.0)
    assert over.read_text() == f"{notice.when}\n"
    caller.close()


def signed(notice, key, study):
    said = msgspec.structs.replace(notice, study=study)
    return write_notice(msgspec.structs.replace(said, signature=key.sign(said.content)))


def test_the_process_that_has_the_secrets_has_no_network(parties):
    kit = parties.kit("s2")
    processes.start(kit.path, [starting.agent_program(kit, NOTHING)])
    try:
        words = soon(lambda: standing(kit), "the agent answers its owner").network
        (process,) = processes.family(kit.path, "agent")
        assert words.startswith(("no network", "no TCP"))
        if words.startswith("no network"):
            assert namespace(process.pid) != namespace(os.getpid())
    finally:
        processes.stop(kit.path)


def namespace(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


# The carrier


def test_a_carrier_to_which_a_secret_opens_does_not_start(tmp_path, monkeypatch):
    """Should the boundary not hold, whatever it promises."""
    secret, executed = tmp_path / "secret", []
    secret.touch()
    monkeypatch.setattr(launch, "confine", lambda *_, **__: None)
    monkeypatch.setattr(os, "execve", lambda *words: executed.append(words))
    monkeypatch.chdir(tmp_path)
    confinement = Confinement("landlock", None, None, "a wall")
    with pytest.raises(InputError, match="the carrier could read"):
        launch.launch(launch.program_input(confinement, tmp_path, ["/bin/true"], [secret]))
    assert executed == []
    # The control: without the secret it does.
    launch.launch(launch.program_input(confinement, tmp_path, ["/bin/true"], [tmp_path / "missing"]))
    assert len(executed) == 1


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


# What comes from outside


def test_a_forged_reply_is_as_good_as_none(parties):
    """The site is asked again, and its own reply counts."""
    contract, asked = parties.study.contract, []
    plan = SlotPlan(0, 0.1)
    question = encode(Ask(MESSAGES, contract.hash, 0, 0, list(contract.roster.names), plan, bytes(32), b""))
    refusal = Refusal(MESSAGES, contract.hash, "s1", "no")
    own, other = (parties.home(name).identity() for name in ("s1", "s2"))
    true = sign_reply(own, question_hash(question), refusal)
    replies = [bytes(200), sign_reply(other, question_hash(question), refusal)]
    replies += [sign_reply(own, bytes(32), refusal), true]

    def send(parcels, seconds):
        asked.append(parcels)
        return {"s1": replies[len(asked) - 1]}

    courier = Courier(contract, send, Patience())
    assert courier.exchange({"s1": question}) == {"s1": true}
    assert (len(asked), courier.lost) == (4, {})


def made_anew(zipped, target, key=None, **changed):
    """Write the kit of somebody in the middle: with another label, signed by another key or as it was."""
    files = unzip(zipped)
    label = msgspec.structs.replace(msgspec.json.decode(files["kit.json"], type=Label), **changed)
    if key is not None:
        label = label.signed(key, {name: files[f"startup/{name}"] for name in STARTUP})
    files["kit.json"] = msgspec.json.encode(label)
    return rezip(files, target)


def keep(home, zipped):
    with kits.received(home, zipped) as (_, keep_it):
        keep_it()


ELSEWHERE = {"host": "elsewhere.example", "port": 8002}


def test_a_kit_that_was_changed_on_its_way_is_refused(parties, tmp_path):
    zipped = parties.federation.site_kits / "s3.zip"
    with pytest.raises(InputError, match="not signed by the coordinator whom it names"):
        keep(parties.home("s3"), made_anew(zipped, tmp_path / "changed.zip", **ELSEWHERE))
    assert parties.kit("s3").server().startswith("localhost:")
    # The control: the coordinator may move.
    keep(parties.home("s3"), made_anew(zipped, tmp_path / "moved.zip", parties.federation.key(), **ELSEWHERE))
    assert parties.kit("s3").server() == "elsewhere.example:8002"


def test_a_kit_of_another_coordinator_does_not_replace_the_first(parties, tmp_path):
    zipped, other = parties.federation.site_kits / "s4.zip", Identity.generate()
    known = {"coordinator": other.public("coordinator").public_key.hex()}
    with pytest.raises(InputError, match="signed by another coordinator than that of the kit"):
        keep(parties.home("s4"), made_anew(zipped, tmp_path / "forged.zip", other, **ELSEWHERE, **known))
    assert parties.kit("s4").server().startswith("localhost:")


def test_a_kit_of_another_version_of_the_protocol_is_refused(parties, tmp_path):
    zipped, key = parties.federation.site_kits / "s4.zip", parties.federation.key()
    words = f"made for version {PROTOCOL + 1} of the protocol, this program speaks version {PROTOCOL}"
    with pytest.raises(InputError, match=words):
        keep(parties.home("s4"), made_anew(zipped, tmp_path / "later.zip", key, protocol=PROTOCOL + 1))
