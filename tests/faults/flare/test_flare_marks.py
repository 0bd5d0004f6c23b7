"""By what a process is known again that was started long ago."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil

from capedjica.flare.processes import Mark


def test_a_process_is_known_by_its_mark_also_after_the_clock_was_set(monkeypatch):
    mark = Mark.read(str(Mark.own()))
    assert mark.pid == os.getpid()
    assert mark.is_alive()
    now = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: now + 3600)
    assert mark.is_alive() == os.path.exists("/proc/self/stat")


def test_another_process_of_the_same_number_is_another():
    assert not replace(Mark.own(), began="1").is_alive()


def test_a_process_that_ended_is_not_alive_before_it_is_waited_for_and_after():
    program = "from capedjica.flare.processes import Mark; print(Mark.own(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    mark = Mark.read(process.stdout.readline())
    assert mark.is_alive()
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not mark.is_alive()
    process.wait()
    assert not mark.is_alive()
    process.stdout.close()
