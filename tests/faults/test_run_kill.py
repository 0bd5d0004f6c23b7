"""``capedjica run`` killed at random moments, and run again: nothing is lost, nothing is spent twice."""

import contextlib
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from capedjica.cli import main
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.one_machine.local_run import find_sites
from capedjica.privacy import gaussian_epsilon
from tests.support.small_study import COMPONENTS, SIDE, make_study

ITERATIONS = 20


def command(folder):
    return [sys.executable, "-m", "capedjica", "run", str(folder)]


def start(folder):
    return subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def complete(folder):
    """Run the command in this process: what it finds was left by another one all the same."""
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as said:
        patch.setattr(sys, "argv", ["capedjica", "run", str(folder)])
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            with pytest.raises(SystemExit) as exited:
                main()
            assert not exited.value.code, said.getvalue()


def kill_after(process, folder, n_bytes):
    """Kill the run once its journal has grown beyond a length; True if it was still running."""
    journal = folder / "run" / "releases.bin"
    while process.poll() is None:
        if journal.exists() and journal.stat().st_size > n_bytes:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.0002)
    return False


def check(study, folder):
    """The run is complete and valid, its cost is that of the ledgers, and no slot served twice."""
    assert RunFolder(folder / "run").state().complete
    mixing, unmixing = np.load(folder / "run" / "mixing.npy"), np.load(folder / "run" / "unmixing.npy")
    assert mixing.shape == (SIDE * SIDE, COMPONENTS)
    np.testing.assert_allclose(unmixing @ mixing, np.eye(COMPONENTS), atol=1e-9)
    privacy = json.loads((folder / "run" / "privacy.json").read_text())
    for home in find_sites(study, folder / "sites"):
        with home.open_ledger() as ledger:
            ledger.verify_chain()
            slots = [sent.slot for sent in ledger.outbox()]
            mu2 = math.fsum(sent.mu2 for sent in ledger.outbox())
        assert len(set(slots)) == len(slots)
        reported = privacy["sites"][home.settings.name]
        assert reported["spent_mu_squared"] == pytest.approx(mu2, rel=1e-12)
        assert reported["spent_epsilon"] <= study.content.privacy.epsilon
        assert gaussian_epsilon(math.sqrt(mu2), 1e-5) <= study.content.privacy.epsilon


@pytest.mark.parametrize("n_kills", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_killed_run_is_taken_up_again(tmp_path, n_kills):
    """Each kill is at a random length of the journal, between its first byte and its last."""
    moments = random.Random(n_kills)
    study = make_study(tmp_path / "whole", iterations=ITERATIONS)
    complete(tmp_path / "whole")
    check(study, tmp_path / "whole")
    whole = (tmp_path / "whole" / "run" / "releases.bin").stat().st_size
    killed = 0
    for number in range(n_kills):
        folder = tmp_path / str(number)
        study = make_study(folder, iterations=ITERATIONS)
        killed += kill_after(start(folder), folder, moments.randrange(whole))
        complete(folder)
        check(study, folder)
    assert 2 * killed >= n_kills


@pytest.mark.parametrize("n_kills", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_run_killed_again_and_again_ends_within_its_budget(tmp_path, n_kills):
    """Kills of one run, each a little later."""
    study = make_study(tmp_path, iterations=ITERATIONS, reserve=0.3)
    journal = tmp_path / "run" / "releases.bin"
    for _ in range(n_kills):
        length = journal.stat().st_size if journal.exists() else 1300
        assert kill_after(start(tmp_path), tmp_path, length)
    complete(tmp_path)
    assert RunFolder(tmp_path / "run").state().resumed >= n_kills
    check(study, tmp_path)


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    study = make_study(tmp_path, iterations=ITERATIONS)
    process = subprocess.Popen(
        command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner in the background may ignore SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    journal = tmp_path / "run" / "releases.bin"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 3000):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 130
    assert "run the same command to resume" in " ".join(output.split())
    assert errors == "capedjica: interrupted\n"
    assert "Traceback" not in output + errors
    done = subprocess.run(command(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check(study, tmp_path)
