"""The server as a program: where it listens, what it prints, how it ends."""

import http.client
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import psutil
import pytest

from capedjica.web.server import _listen
from tests.support.terminal import Terminal, signals_as_at_a_terminal
from tests.support.waiting import wait_for


@contextmanager
def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "capedjica", *arguments, "--no-browser"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=signals_as_at_a_terminal,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process):
    return re.fullmatch(
        r"Open, once: (http://127\.0\.0\.1:(\d+)/\S+/open\?token=\S{43})\n", process.stdout.readline()
    )


def test_it_listens_on_the_loopback_interface_only():
    with _listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("command", ["site", "study"])
def test_it_is_opened_once_and_ends_with_an_interruption(command, home, study):
    folder = home if command == "site" else study
    with started(command, "web", str(folder)) as process:
        found = address_of(process)
        assert found
        with urllib.request.urlopen(found[1], timeout=60) as answer:
            assert answer.status == 200
        line = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=60)
        line.request("GET", "/")
        assert line.getresponse().status == 404
        line.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 130)
        assert "Traceback" not in err
        # No request is logged.
        assert "GET" not in out + err


def test_enter_gives_another_address(home):
    terminal = Terminal("site", "web", str(home), "--no-browser", cwd=home)
    try:
        terminal.answer("Ctrl-C to end.", "")
        terminal.expect("Open, once: http://127.0.0.1")
    finally:
        terminal.process.send_signal(signal.SIGINT)
        terminal.close()


def test_what_is_given_is_checked(home, cli):
    for wrong in (["--port", "70000"], ["--port", "-1"], ["--idle", "0"], ["--idle", "nan"]):
        found = cli("site", "web", str(home), "--no-browser", *wrong)
        assert found.returncode == 2
        assert wrong[0] in found.stderr


def test_a_port_that_is_taken_is_named(home, cli):
    with _listen(0) as taken:
        port = str(taken.getsockname()[1])
        found = cli("site", "web", str(home), "--no-browser", "--port", port)
        assert found.returncode == 2
        assert f"port {port} of 127.0.0.1 cannot be used" in found.stderr


def test_without_the_extra_it_says_what_to_install(home, cli, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    answer = cli("site", "web", str(home))
    assert answer.returncode == 2
    assert "pip install 'capedjica[web]'" in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_of_the_owner_is_left_in_temporary_folders(home, tmp_path, monkeypatch, number):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    os.mkdir(tmp_path / "scratch")
    with started("site", "web", str(home)) as process:
        assert address_of(process)
        process.stdout.readline()
        assert list((tmp_path / "scratch").iterdir())
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode in ((0, 130) if number == signal.SIGINT else (128 + number,))
        assert "Traceback" not in err
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_waits_ends_with_the_pages(home, number):
    """A page whose command reads a pipe that nobody writes to."""
    (home / "site.toml").unlink()
    os.mkfifo(home / "site.toml")
    with started("site", "web", str(home)) as process:
        found = address_of(process)
        with urllib.request.urlopen(found[1], timeout=60) as answer:
            cookie = answer.headers["set-cookie"].partition(";")[0]
        line = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=60)
        line.request("GET", f"/{found[1].split('/')[3]}/cohort", headers={"Cookie": cookie})
        # The loaded process, and the command that it forked.
        wait_for(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 2)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.communicate(timeout=20)
        gone, left = psutil.wait_procs(below, timeout=5)
        line.close()
        assert (len(gone), left) == (2, [])
