"""A hostile program in the place of FLARE, confined as FLARE is: what it reaches, and what it obtains."""

import contextlib
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from capedjica.errors import CapedjicaError
from capedjica.flare import processes
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.messages import Answer, SlotPlan, _replies
from capedjica.securesum.identity import SIGNATURE_BYTES
from capedjica.site.flare.starting import secrets
from capedjica.tools.confinement import landlock
from tests.attacks.flare.attacked import REACHABLE, insisting, soon
from tests.attacks.messages.hostile_messages import attack
from tests.attacks.messages.test_hostile_messages import check
from tests.federated.consortium import Consortium
from tests.support.confined import opened_to_others
from tests.support.places import ROOT
from tests.support.small_study import make_study

LENGTH = struct.Struct(">I")
SITES = ("s1", "s2", "s3", "s4")
REFUSED = {"EACCES", "EPERM"}
# What a later question may not change any more.
FRACTIONS = (0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-5, 1e-7)


@pytest.fixture(params=[pytest.param("landlock", marks=pytest.mark.full), "user"])
def kind(request):
    if request.param == "landlock" and landlock.abi() < 6:
        pytest.skip("this system has no Landlock that keeps signals in")
    return request.param


@pytest.fixture
def public(monkeypatch):
    """A folder that every user can enter, and for sockets one that every user can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="replaced-"))
    folder.chmod(0o755)
    (folder / "sockets").mkdir(mode=0o711)
    monkeypatch.setenv("CAPEDJICA_SOCKETS", str(folder / "sockets"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), REACHABLE]))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def replaced(folder, kind, names=SITES):
    """Yield a study whose sites have the hostile program, and what that program says."""
    wrapper = opened_to_others(folder) if kind == "user" else []
    if wrapper is None:
        pytest.skip("other users cannot be tried out: that takes root, and an interpreter that they can read")
    parties = Consortium(make_study(folder / "study", iterations=3))
    if kind == "user":
        open_ways(parties)
    command = [*map(str, wrapper), sys.executable, "-m", "tests.attacks.flare.replaced"]
    try:
        done = subprocess.run(
            [*command, str(parties.folder), kind, *names], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        yield parties, {name: results(parties, name) for name in names}
    finally:
        for name in names:
            processes.stop(parties.place(name))


def open_ways(parties):
    """Let every user pass to where the carriers work, as the guide has it for two users."""
    for folder in (
        parties.folder,
        parties.folder / "sites",
        *(home.folder for home in parties.homes.values()),
    ):
        folder.chmod(folder.stat().st_mode | 0o011)


def results(parties, name):
    """Return what the program at a site said, once it has tried all."""
    file, log = parties.kit(name).workspace / "results.json", processes.log(parties.place(name), "carrier")
    soon(
        lambda: file.exists() or "ended with exit code" in log.read_text(),
        f"the program of {name} has tried all",
    )
    assert file.exists(), log.read_text()
    return json.loads(file.read_text())


def test_a_hostile_program_in_the_place_of_flare_reaches_nothing_and_obtains_what_is_charged(public, kind):
    with replaced(public, kind) as (parties, said):
        for name in SITES:
            check_reach(parties, name, said[name], kind)
        network = Bridges({name: said[name]["port"] for name in SITES})
        exchange = insisting(parties.study.contract, network.send)
        outcomes = attack(parties.study.contract, exchange)
        # What the lies obtained is looked at before more is asked for, from ledgers that nobody writes to.
        check(outcomes, parties.study, parties.homes.values())
        ask_for_everything(parties.study.contract, exchange)
        ask_again(network)
        for name in SITES:
            check_charged(parties, name, network.received[name])


def test_the_same_program_without_a_boundary_reads_everything(public):
    """The control of the files."""
    with replaced(public, "none", ["s1"]) as (parties, said):
        read = said["s1"]["read"]
        for path in secrets(parties.home("s1"), parties.kit("s1")):
            assert read[str(path.absolute())] == "did"


def still_there(path, word):
    return word != "ENOENT" or Path(path).exists()


def check_reach(parties, name, said, kind):
    """Nothing opened, no process was touched, and the agent served on after all nonsense."""
    own = {str(path.absolute()) for path in secrets(parties.home(name), parties.kit(name))}
    # A folder that other users may pass through they still cannot list. A draft, or a ledger's journal, that
    # was there when the list was made may be gone since: it is not there for anybody.
    read, write = (
        {path: word for path, word in said[how].items() if still_there(path, word)}
        for how in ("read", "write")
    )
    assert own <= read.keys()
    assert set(read.values()) <= REFUSED, read
    assert set(write.values()) <= {*REFUSED, "EISDIR"}, write
    assert set(said["agent"].values()) <= REFUSED, said["agent"]
    assert (said["who"] != os.getuid()) == (kind == "user")
    refusal = {"landlock": "for the site's owner alone", "user": f"user {said['who']} may not connect here"}
    assert len(said["owner"]) > 50
    assert all(refusal[kind] in words for words in said["owner"]), said["owner"]
    assert said["second"] == "another carrier is connected: one at a time"
    frames = dict(said["frames"])
    assert "this socket is for the carrier" in frames.pop("role")
    assert "the socket protocol has version 99" in frames.pop("version")
    assert set(frames.values()) == {"did"}, frames


class Bridges:
    """The ways to the sites through their hostile carriers; all that comes back is kept."""

    def __init__(self, ports):
        self._ports = ports
        self.received = {name: [] for name in ports}
        self.sent = []

    def send(self, parcels, seconds):
        return {name: self._one(name, parcel) for name, parcel in parcels.items()}

    def _one(self, name, parcel):
        self.sent.append((name, parcel))
        with (
            socket.create_connection(("127.0.0.1", self._ports[name])) as line,
            line.makefile("rwb") as stream,
        ):
            stream.write(LENGTH.pack(len(parcel)) + parcel)
            stream.flush()
            reply = stream.read(LENGTH.unpack(stream.read(LENGTH.size))[0])
        self.received[name].append(reply)
        return reply


def ask_for_everything(contract, exchange):
    """Be an aggregator that never stops: it asks for slots of all sizes until nobody has anything left."""
    for fraction in FRACTIONS:
        for _ in range(2):
            aggregator = Aggregator(contract, exchange)
            aggregator._calibrate = lambda spent: None
            aggregator._coming_slots = lambda stage, part=fraction: [SlotPlan(0, part)]
            with suppress(CapedjicaError):
                aggregator.mean(0)


def ask_again(network):
    """Put all that was ever asked once more, word for word."""
    for name, parcel in list(network.sent):
        network._one(name, parcel)


def check_charged(parties, name, received):
    """Every answer is in the ledger, one under each mask, and all together stay below the cap."""
    answers = {}
    for reply in filter(None, received):
        with contextlib.suppress(ValueError):
            message = _replies.decode(reply[SIGNATURE_BYTES:])
            if isinstance(message, Answer):
                answers.setdefault((message.block, message.slot), set()).add(message.words)
    with parties.home(name).open_ledger() as ledger:
        outbox, spent = list(ledger.outbox()), ledger.spent(parties.study.contract.hash)
    charged = {(sent.slot.block, sent.slot.slot): sent for sent in outbox}
    assert len(answers) > 1
    assert answers.keys() <= charged.keys()
    assert all(len(words) == 1 for words in answers.values()), "two messages under one mask"
    assert all(words in charged[place].message for place, (words,) in answers.items())
    assert math.fsum(sent.mu2 for sent in outbox) == pytest.approx(spent, rel=1e-12)
    cap = parties.study.contract.cap(name).mu2
    assert 0.9 * cap < spent <= cap
