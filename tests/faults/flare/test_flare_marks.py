"""By what a process is known again that was started long ago."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from capedjica.flare.processes import mark, marked


def test_a_process_is_known_by_its_mark_also_after_the_clock_was_set(monkeypatch):
    known = mark(os.getpid())
    assert marked(known) == os.getpid()
    now = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: now + 3600)
    assert marked(known) == (os.getpid() if os.path.exists("/proc/self/stat") else None)


def test_another_process_of_the_same_number_is_another():
    assert marked(f"{os.getpid()} 1") is None


@pytest.mark.parametrize("text", ["", "nobody", "1", "-1 5"])
def test_what_is_no_mark_is_of_nobody(text):
    assert marked(text) is None


def test_a_process_that_ended_is_not_alive_before_it_is_waited_for_and_after():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = mark(process.pid)
    assert marked(known) == process.pid
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert marked(known) is None
    process.wait()
    assert marked(known) is None
