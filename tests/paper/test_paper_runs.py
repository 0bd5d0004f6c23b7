"""Runs: kept by code and parameters, written whole, resumed, made in parallel, honest about time left."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from paper.shared import runs
from paper.shared.runs import Clock, Kept, Outcome, Run, code_hash, make_all, make_and_store, source_files
from tests.support.places import ROOT


@dataclass(frozen=True)
class Base(Run):
    """Leaves a mark where it was made."""

    value: float
    place: str = field(default="", compare=False)

    @property
    def cost(self):
        return 1.0

    def make(self, kept):
        with (Path(self.place) / "made.txt").open("a") as file:
            file.write(f"{type(self).__name__} {self.value}\n")
        return Outcome({"value": self.value}, {"array": np.full(3, self.value)})


@dataclass(frozen=True)
class Doubled(Base):
    """Needs another."""

    @property
    def needs(self):
        return (Base(self.value, self.place),)

    def make(self, kept):
        super().make(kept)
        return Outcome({"value": 2 * kept.load(self.needs[0]).numbers["value"]})


@dataclass(frozen=True)
class Failing(Base):
    """Fails."""

    def make(self, kept):
        raise ValueError("on purpose")


def quiet():
    return Console(file=StringIO())


def made(folder):
    path = folder / "made.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_kept_comes_back(tmp_path):
    kept, run = Kept(tmp_path / "runs"), Base(1.5, str(tmp_path))
    assert run not in kept
    make_and_store(run, kept)
    assert run in kept
    outcome = kept.load(run)
    assert outcome.numbers == {"value": 1.5}
    np.testing.assert_array_equal(outcome.arrays["array"], [1.5, 1.5, 1.5])
    assert outcome.seconds > 0


def test_needs_come_first_and_everything_is_made_once(tmp_path):
    kept, place = Kept(tmp_path / "runs"), str(tmp_path)
    runs = [Doubled(1.0, place), Doubled(2.0, place), Base(1.0, place), Doubled(1.0, place)]
    make_all(runs, kept, quiet(), 1)
    assert sorted(made(tmp_path)) == ["Base 1.0", "Base 2.0", "Doubled 1.0", "Doubled 2.0"]
    assert kept.load(runs[1]).numbers["value"] == 4.0
    make_all(runs, kept, quiet(), 1)
    assert len(made(tmp_path)) == 4


def test_an_error_loses_only_the_run_that_failed(tmp_path):
    kept, place = Kept(tmp_path / "runs"), str(tmp_path)
    with pytest.raises(ValueError, match="on purpose"):
        make_all([Base(1.0, place), Failing(2.0, place), Base(3.0, place)], kept, quiet(), 1)
    assert Base(1.0) in kept
    make_all([Base(1.0, place), Base(3.0, place)], kept, quiet(), 1)
    assert made(tmp_path) == ["Base 1.0", "Base 3.0"]


def test_a_write_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    kept, run = Kept(tmp_path / "runs"), Base(1.0, str(tmp_path))

    def broken(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(runs.np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        make_and_store(run, kept)
    assert run not in kept
    assert list((tmp_path / "runs").iterdir()) == []


def test_key_is_that_of_parameters_and_code_and_not_of_places(monkeypatch):
    assert Base(1.0, "here").key == Base(1.0, "there").key
    assert Base(1.0).key != Base(2.0).key
    assert Base(1.0).key != Doubled(1.0).key
    before = Base(1.0).key
    monkeypatch.setattr(runs, "code_hash", lambda module: "other code")
    assert Base(1.0).key != before


def test_code_of_a_run_is_what_it_imports_and_no_figure():
    names = {path.relative_to(ROOT).as_posix() for path in source_files("paper.shared.ica_runs")}
    for expected in (
        "paper/shared/ica_runs.py",
        "paper/shared/runs.py",
        "src/capedjica/algorithms/ica/infomax.py",
        "src/capedjica/algorithms/kernels.py",
        "src/capedjica/securesum/discrete_gaussian.py",
        "benchmarks/utility/shared/problems.py",
    ):
        assert expected in names
    assert not any(
        name.startswith(("paper/vary", "paper/shared/scores", "src/capedjica/cli")) for name in names
    )


def test_code_hash_follows_the_files(tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper/one.py").write_text("from paper import two\n")
    (tmp_path / "paper/two.py").write_text("import numpy\n")
    monkeypatch.setattr(runs, "_SOURCES", (tmp_path,))
    hashes = []
    for text in ("import numpy\n", "import numpy as np\n"):
        (tmp_path / "paper/two.py").write_text(text)
        code_hash.cache_clear()
        hashes.append(code_hash("paper.one"))
    code_hash.cache_clear()
    assert hashes[0] != hashes[1]


def test_clock_learns_how_wrong_the_estimates_were():
    runs = [Base(float(value)) for value in range(100)]
    clock = Clock(runs, 2)
    assert clock.left == pytest.approx(50)
    for run in runs[:40]:
        clock.done(run, 3.0)
    # 40 estimated seconds took 120: with 10 s of trust, (120 + 10)/(40 + 10) = 2.6 for the 60 that are left
    assert clock.left == pytest.approx(60 * 2.6 / 2)


def test_progress_is_told_away_from_a_terminal(tmp_path):
    text = StringIO()
    runs = [Base(float(value), str(tmp_path)) for value in range(4)]
    make_all(runs, Kept(tmp_path / "runs"), Console(file=text), 1)
    assert "0/4 runs, about 4 s left" in text.getvalue()
    assert "4/4 runs, about 0 s left" in text.getvalue()


PROGRAM = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
from rich.console import Console
from paper.shared.common import Options, make_runs
from paper.shared.runs import Outcome, Run

@dataclass(frozen=True)
class Wait(Run):
    seconds: float
    @property
    def cost(self):
        return self.seconds
    def make(self, kept):
        time.sleep(self.seconds)
        return Outcome({"seconds": self.seconds})

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    runs = [Wait(0.0), Wait(0.001), *(Wait(float(s)) for s in range(60, 70))]
    make_runs(runs, Options(False, folder, None, folder / "runs"))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_interruption_keeps_what_is_finished(tmp_path):
    """Two processes; Ctrl-C reaches the whole group."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whatever runs in the background is started with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "runs"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.npz"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "finished runs are kept" in errors
    assert process.returncode == 1
    values = [json.loads(str(np.load(path)["head"]))["numbers"]["seconds"] for path in folder.glob("*.npz")]
    assert sorted(values) == [0.0, 0.001]
    assert list(folder.glob(".*.part")) == []
