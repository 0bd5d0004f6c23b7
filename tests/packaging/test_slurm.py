"""Agent on a node, carrier at the gateway: their socket through a forward. Slurm and ssh are not run here."""

import contextlib
import os
import re
import socket
import subprocess
import threading

import pytest

from capedjica.flare.link import VERSION, Caller, Greeting, LinkError, Listener, answer_calls, connect, owners
from capedjica.flare.wire import MAX_FRAME, SETTINGS
from tests.support.command_lines import command_lines, parse
from tests.support.places import ROOT

SCRIPTS = sorted((ROOT / "deploy" / "slurm").iterdir())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_valid_and_their_commands_exist(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text("utf-8")
    assert "set -euo pipefail" in text
    commands = command_lines(re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    assert commands
    for line in commands:
        parse(line)


def test_the_job_asks_slurm_for_what_it_knows():
    text = (ROOT / "deploy" / "slurm" / "agent.sbatch").read_text("utf-8")
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert set(options) == {"job-name", "nodes", "ntasks", "cpus-per-task", "mem", "time", "signal", "output"}
    assert text.splitlines()[-1].startswith("exec capedjica site agent")
    assert f"local/{SETTINGS}" in (ROOT / "deploy" / "slurm" / "carrier.sh").read_text("utf-8")


def test_the_gateway_opens_the_socket_that_the_agent_wrote_down(tmp_path):
    """With a program in place of ssh that notes how it was called and makes the socket."""
    tools, folder, sockets = tmp_path / "bin", tmp_path / "carrier", tmp_path / "sockets"
    (folder / "local").mkdir(parents=True)
    tools.mkdir()
    (folder / "local" / SETTINGS).write_text(f'{{"socket": "{sockets}/a.carrier"}}')
    ssh = "import socket, sys, time\nprint(*sys.argv[1:], file=open('called', 'w'))\n"
    ssh += "socket.socket(socket.AF_UNIX).bind(sys.argv[-2].split(':')[0])\ntime.sleep(60)\n"
    for name, text in {
        "ssh": f"#!/usr/bin/env python3\n{ssh}",
        "capedjica": '#!/bin/sh\ntest -S "$SOCKET" && echo "$@" > carried\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    given = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SOCKET": f"{sockets}/a.carrier"}
    script = ROOT / "deploy" / "slurm" / "carrier.sh"
    subprocess.run([script, "node-7", folder], cwd=tmp_path, env=given, check=True, timeout=60)
    called = (tmp_path / "called").read_text().split()
    assert called[-3:] == ["-L", f"{sockets}/a.carrier:{sockets}/a.carrier", "node-7"]
    assert "BatchMode=yes" in called
    assert (tmp_path / "carried").read_text() == f"site carrier {folder}\n"
    assert not (sockets / "a.carrier").exists()
    assert sockets.stat().st_mode & 0o777 == 0o700


class Forward:
    """What ``ssh -L near:far`` does, on one machine: each connection to ``near`` goes on to ``far``."""

    def __init__(self, near, far):
        self._far, self.lines = far, []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(near))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.connect(str(self._far))
            self.lines += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one, other):
        try:
            while piece := one.recv(1000):  # not the pieces in which it was sent
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        self._socket.close()
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


@pytest.fixture
def office(tmp_path):
    def serve(channel, greeting):
        with contextlib.suppress(LinkError):
            answer_calls(channel, lambda data: data[::-1])
        channel.close()

    made = Listener(tmp_path / "far", MAX_FRAME, owners(), lambda greeting: "", serve, lambda line: None)
    yield tmp_path
    made.close()


def test_questions_and_answers_pass_a_forwarded_socket(office):
    forward = Forward(office / "near", office / "far")
    caller = Caller(connect(office / "near", Greeting(VERSION, "carrier"), MAX_FRAME))
    long = os.urandom(1 << 20)
    assert caller.call(b"abc", 10) == b"cba"
    assert caller.call(long, 60) == long[::-1]
    caller.close()
    forward.cut()


def test_a_forward_that_breaks_is_noticed_and_a_new_one_serves(office):
    forward = Forward(office / "near", office / "far")
    caller = Caller(connect(office / "near", Greeting(VERSION, "carrier"), MAX_FRAME))
    assert caller.call(b"abc", 10) == b"cba"
    forward.cut()
    with pytest.raises(LinkError):
        caller.call(b"abc", 10)
    (office / "near").unlink()
    forward = Forward(office / "near", office / "far")
    again = Caller(connect(office / "near", Greeting(VERSION, "carrier"), MAX_FRAME))
    assert again.call(b"abc", 10) == b"cba"
    again.close()
    forward.cut()
