"""The benchmark command: what it refuses, how it is interrupted, and the memory claim it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_unknown_section_is_refused_with_the_choice() -> None:
    done = python("-m", "benchmarks", "nonsense")
    assert done.returncode == 2
    assert "there is no section nonsense; choose from noise, securesum" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_is_clean() -> None:
    evidence = ROOT / "docs" / "evidence" / "bench-noise.txt"
    before = evidence.stat().st_mtime_ns if evidence.exists() else None
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "benchmarks", "noise"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background ignores interrupts, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring noise ...\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 130
    assert "interrupted" in output
    assert "Traceback" not in errors
    assert before == (evidence.stat().st_mtime_ns if evidence.exists() else None)


def test_a_peer_that_cannot_be_installed_is_reported_in_one_line(tmp_path: Path) -> None:
    """No index at all stands for no network; the environment is made in a scratch folder."""
    program = (
        "import pathlib, sys; from rich.console import Console; from benchmarks.peers import process;"
        "process.ROOT = pathlib.Path(sys.argv[1]);"
        "process.Peer('flower_secagg', 'absent', 'no-such-package-of-ours', Console(stderr=True))"
    )
    done = python("-c", program, str(tmp_path), PIP_NO_INDEX="1")
    last = done.stderr.strip().splitlines()[-1]
    assert "PeerUnavailableError: absent could not be installed (is there a network?): ERROR" in last


def test_a_site_needs_less_than_four_vectors() -> None:
    """Peak of allocations and of resident memory for two million words, the site's vector included."""
    done = python("-m", "benchmarks.site_memory")
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert all(1.0 < peak < 4.0 for peak in peaks.values()), peaks
