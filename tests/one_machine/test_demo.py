"""``capedjica demo`` end to end, small."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SMALL = ["demo", "--subjects", "48", "--components", "4", "--epsilon", "20"]


def test_demo_writes_what_it_promises(tmp_path, cli):
    result = cli(*SMALL, "--out", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "convergence.png",
        "maps.png",
        "report.html",
        "result.json",
    ]
    numbers = json.loads((tmp_path / "out" / "result.json").read_text())
    assert numbers["sites"] == [12, 12, 12, 12]
    assert numbers["epsilon"] == 20
    private, free = numbers["runs"]["cape"], numbers["runs"]["none"]
    assert free["gain_index"] < 0.1
    assert private["epsilon_by_iteration"][-1] <= 20
    assert f"gain index {private['gain_index']:.3f}" in result.stdout
    assert set(numbers["grades"]) <= {"good", "fair", "poor"}
    assert "UserWarning" not in result.stderr
    for text in (
        "all in one process",
        "Reliability: ",
        "Quality:",
        "Privacy cost: Each participant (all of their data) is protected with",
        "epsilon 20",
        "one site alone",
        "not private",
    ):
        assert text in result.stdout
    for figure in ("maps.png", "convergence.png"):
        assert (tmp_path / "out" / figure).read_bytes().startswith(b"\x89PNG")


def test_maps_that_are_not_reliable_are_not_called_networks(tmp_path, cli):
    result = cli(*SMALL[:-1], "0.2", "--out", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert 0 <= said.find("Not reliable: ") < said.find("4 maps, none of them reliable, from 48 participants")
    assert "No scan left" not in said
    assert "Maps of 48 simulated participants" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "epsilon must be a finite number above 0, got 0.0"),
        (["--components", "1"], "n_components must be"),
        (["--subjects", "2"], "n_subjects"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, message, cli):
    result = cli("demo", "--out", str(tmp_path / "out"), *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_made(tmp_path, cli):
    (tmp_path / "file").write_text("")
    result = cli("demo", "--out", str(tmp_path / "file" / "out"))
    assert result.returncode == 2
    assert "cannot be created" in result.stderr


def test_interrupt_leaves_nothing_half_written(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "capedjica", "demo", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        # A run in the background ignores the signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "out").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert list((tmp_path / "out").iterdir()) == []
