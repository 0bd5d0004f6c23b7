"""A run whose disk is full, and a run killed between any two of its files: it goes on, within its budget."""

import signal
import subprocess
import sys

import pytest

from capedjica.coordinator.run.journal import Journal
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from tests.faults.test_ledger_storage import file_size_limit
from tests.faults.test_run_kill import check, complete
from tests.support.small_study import make_study

N_FILES = 12  # run.json, study.toml, eight results, run.json when complete and once more with the time
DYING = """
import os, signal, sys
left = int(sys.argv.pop(1))
def dying(function):
    def call(source, target, **options):
        global left
        if os.path.basename(os.path.dirname(target)) == "run":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(source, target, **options)
    return call
os.link, os.replace = dying(os.link), dying(os.replace)
from capedjica.cli import main
main()
"""


@pytest.mark.parametrize(
    "number",
    [n if n in (1, 2, 3, 10) else pytest.param(n, marks=pytest.mark.full) for n in range(1, 1 + N_FILES)],
)
def test_a_kill_before_any_file_gets_its_name(tmp_path, number):
    study = make_study(tmp_path, iterations=3)
    killed = subprocess.run(
        [sys.executable, "-c", DYING, str(number), "run", str(tmp_path)], capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    complete(tmp_path)
    check(study, tmp_path)


def test_a_disk_that_fills_up_while_releases_are_made(tmp_path, monkeypatch):
    """One line, not a trace; with room again, the run goes on with all that was kept."""
    study = make_study(tmp_path, iterations=3)
    homes = find_sites(study, tmp_path / "sites")
    append, journal_path = Journal.append, tmp_path / "run" / "releases.bin"

    def append_to_full_disk(journal, record):
        room = 10 if len(journal.records) == 2 else 10**6
        with file_size_limit(journal_path.stat().st_size + room):
            append(journal, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_to_full_disk)
        with pytest.raises(InputError, match=r"releases.bin cannot be written: File too large"):
            run_study(study, homes, tmp_path / "run")
    assert run_study(study, homes, tmp_path / "run").complete
    check(study, tmp_path)


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, capfd):
    study = make_study(tmp_path, iterations=3)
    (tmp_path / "run").mkdir()
    (tmp_path / "sites" / "s1" / "site.log").symlink_to("/dev/full")
    homes = find_sites(study, tmp_path / "sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capedjica.tools.log_files._make_private", lambda path: None)
        assert run_study(study, homes, tmp_path / "run").complete
    assert capfd.readouterr().err == ""


def test_a_log_in_a_place_of_something_else_is_named(tmp_path):
    study = make_study(tmp_path, iterations=3)
    (tmp_path / "sites" / "s2" / "site.log").mkdir()
    with pytest.raises(InputError, match=r"s2/site.log cannot be written: Is a directory"):
        run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
