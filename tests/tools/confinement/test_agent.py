"""A process that holds secrets has no network, and nobody reads its memory."""

import json
import os
import shutil
import socket

import pytest

from capedjica.tools.confinement import agent, landlock
from tests.support.confined import NOBODY, run_python

# Somebody of the same user listens outside; the agent isolates itself and tries what it can.
AGENT = """
import json, os, socket, struct, sys
how, port, folder = sys.argv[1:]
if how.isdigit():
    os.setgroups([])
    os.setresgid(*[int(how)] * 3)
    os.setresuid(*[int(how)] * 3)
    # As another user, and from the very start, as a program that is executed.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:3], "isolated", port, folder])
from capedjica.tools.confinement import agent, process
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/outside")
listener.listen()
def peer(connection):
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
def attempt(work):
    try:
        return work() or "did"
    except OSError as error:
        return error.strerror
outside = os.fork()
if outside == 0:
    connection = listener.accept()[0]
    connection.send(json.dumps(peer(connection)).encode())
    connection.recv(1)
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(folder + "/inside")
    caller.recv(1)
    os._exit(0)
if how == "no namespaces":
    agent.without_network = lambda **how: False
said = {"words": agent.isolate_agent() if how != "free" else ""}
address = ("127.0.0.1", int(port))
said["loopback"] = attempt(lambda: socket.create_connection(address, 5).close())
said["far"] = attempt(lambda: socket.create_connection(("192.0.2.1", 80), 0.2).close())
said["datagram"] = attempt(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", address) * 0)
inside = socket.socket(socket.AF_UNIX)
inside.bind(folder + "/inside")
inside.listen()
connection = socket.socket(socket.AF_UNIX)
connection.connect(folder + "/outside")
said["listener"], said["seen outside"] = peer(connection), json.loads(connection.recv(99))
connection.send(b"x")
said["caller"] = peer(inside.accept()[0])
said["own"] = [os.getuid(), os.getgid()]
said["child"] = os.waitstatus_to_exitcode(os.system("true"))
said["capable"] = os.geteuid() != 0 and [line for line in open("/proc/self/status") if "CapEff" in line]
print(json.dumps(said))
"""


def tried(how, folder, wrapper=(), **more):
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run_python(AGENT, how, server.getsockname()[1], folder, wrapper=wrapper, **more)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # Sockets with a path work in both directions, and each side sees who the other is.
    assert said["listener"] == said["seen outside"] == said["caller"] == said["own"]
    assert said["child"] == 0
    return said


def without_namespaces(said):
    return "namespace" not in said["words"].partition(";")[0].partition("(")[0]


def test_an_agent_without_isolation_has_a_network(tmp_path):
    said = tried("free", tmp_path)
    assert (said["loopback"], said["datagram"]) == ("did", "did")


def test_an_agent_has_no_network(tmp_path):
    said = tried("isolated", tmp_path)
    if without_namespaces(said):
        pytest.skip("this system allows no namespaces")
    assert said["words"].startswith("no network, by an empty network namespace; ")
    assert [said[name] for name in ("loopback", "far", "datagram")] == ["Network is unreachable"] * 3


def test_an_agent_that_is_not_roots_has_no_network_and_knows_its_peers(wrapper, package, public):
    folder = public / "agent"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    said = tried(str(NOBODY), folder, wrapper, package=package)
    if without_namespaces(said):
        pytest.skip("this system allows no namespaces")
    assert said["own"] == [NOBODY, NOBODY]
    assert [said[name] for name in ("loopback", "far", "datagram")] == ["Network is unreachable"] * 3
    assert said["capable"] == ["CapEff:\t0000000000000000\n"]


def test_an_agent_has_no_tcp_where_there_are_no_namespaces(tmp_path):
    if landlock.abi() < landlock.TCP_SINCE:
        pytest.skip("this Landlock does not govern TCP")
    said = tried("no namespaces", tmp_path)
    assert said["words"].startswith(f"no TCP, by Landlock, ABI {landlock.abi()} (UDP is left")
    assert (said["loopback"], said["far"]) == ("Permission denied",) * 2
    assert said["datagram"] == "did"


THREADS = """
import socket, sys, threading
from capedjica.tools.confinement import agent
done = threading.Event()
threading.Thread(target=done.wait).start()
print(agent.isolate_agent())
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
done.set()
"""


def test_nothing_is_claimed_that_would_hold_for_one_thread_only():
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run_python(THREADS, server.getsockname()[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the network is unchanged")


MEMORY = """
import os, resource, sys
from capedjica.tools.confinement import process
process.drop_capability_bound()
process.drop_capabilities()
reading, writing = os.pipe()
victim = os.fork()
if victim == 0:
    if sys.argv[1] == "hidden":
        process.hide_memory()
    os.write(writing, b"%d" % resource.getrlimit(resource.RLIMIT_CORE)[1])
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    os._exit(0)
said = [str(int(os.read(reading, 30)) == 0)]
for name in ("mem", "environ"):
    try:
        open(f"/proc/{victim}/{name}", "rb").close()
        said.append("opened")
    except PermissionError:
        said.append("refused")
os.close(os.open(sys.argv[2], os.O_WRONLY))
os.waitpid(victim, 0)
print(*said)
"""


def test_the_memory_of_an_agent_is_hidden_from_its_user(tmp_path):
    os.mkfifo(tmp_path / "wait")
    free = run_python(MEMORY, "free", tmp_path / "wait")
    if not free.stdout.endswith("opened opened\n"):
        pytest.skip("this system keeps all processes from each other: " + free.stderr)
    hidden = run_python(MEMORY, "hidden", tmp_path / "wait")
    assert (hidden.stdout, hidden.stderr) == ("True refused refused\n", "")


def test_an_agent_of_two_users_is_told_which_network_it_was_started_in(monkeypatch):
    """It must tell users apart, so it leaves the network to whoever started it, and says what it found."""
    asked = []
    monkeypatch.setattr(agent, "without_network", lambda user_namespace: asked.append(user_namespace))
    monkeypatch.setattr(agent, "hide_memory", lambda: None)
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    said = {}
    for found in ({"lo"}, {"lo", "eth0"}, {"unknown"}):
        monkeypatch.setattr(agent, "_interfaces", lambda found=found: found)
        said[" ".join(sorted(found))] = agent.isolate_agent(knows_users=True)
    assert asked == [False] * 3
    assert said["lo"].startswith("no network, by the empty network namespace that it was started in")
    assert said["eth0 lo"].startswith("the network is unchanged")
    assert said["unknown"].startswith("the network is unchanged")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can unshare")
def test_an_empty_network_is_known_by_its_interfaces():
    code = "from capedjica.tools.confinement.agent import _interfaces; print(_interfaces())"
    empty = run_python(code, wrapper=["unshare", "-n"]).stdout
    assert empty.strip() == "{'lo'}"
