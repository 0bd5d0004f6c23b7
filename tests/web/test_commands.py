"""Commands run for the pages: the same program, with nothing in the process list, whatever ends when."""

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import capedjica
from capedjica.errors import InputError
from capedjica.web.application import _Followed
from capedjica.web.commands import Commands, shown
from capedjica.web.jobs import Desk
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def warm():
    commands = Commands("site")
    yield commands
    commands.close()


def test_output_errors_and_exit_codes_are_those_of_the_command(warm, tmp_path):
    found = warm.run("--version")
    assert found.ok
    assert found.out.startswith("capedjica ")
    missing = warm.run("site", "show", str(tmp_path), "--json")
    assert missing.code == 2
    assert missing.json() is None
    assert "site.toml" in missing.error
    assert not missing.error.startswith("capedjica:")
    assert warm.run("no", "such", "command").code == 2


def test_arguments_are_not_in_the_process_list(warm, home):
    secret = "sub-somebody"
    running = warm.launch(["site", "status", str(home), "--watch", "--study", secret])
    lines = Path(f"/proc/{running.process}/cmdline").read_bytes()
    assert secret.encode() not in lines
    assert b"capedjica.cli.warm" in lines
    running.interrupt()
    found = running.result()
    assert found.code == 130


def test_a_command_that_is_killed_is_said_to_be_so(warm, home):
    running = warm.launch(["site", "status", str(home), "--watch"])
    os.kill(running.process, signal.SIGKILL)
    found = running.result()
    assert found.code == -1
    assert "ended before it was done" in found.error


def test_the_loaded_process_is_started_again(warm):
    warm._process.kill()
    warm._process.wait()
    assert warm.run("--version").ok


def test_a_command_with_a_log_outlives_the_pages(home, tmp_path):
    commands, log = Commands("site"), tmp_path / "log"
    running = commands.launch(["site", "status", str(home), "--watch", "--json"], log)
    commands.close()
    end = time.monotonic() + 60
    while not log.exists() or not log.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert json.loads(log.read_text().splitlines()[0]) == []
    assert log.stat().st_mode & 0o777 == 0o600
    running.interrupt()
    assert running.result().code == 130


def test_commands_end_when_the_pages_are_closed(home, monkeypatch):
    monkeypatch.setattr("capedjica.web.commands._GRACE", 0.5)
    commands = Commands("site")
    asked, stopped = (commands.launch(["site", "status", str(home), "--watch"]) for _ in range(2))
    # One that does not answer to an interruption.
    os.kill(stopped.process, signal.SIGSTOP)
    commands.close()
    assert asked.result().code == 130
    assert stopped.result().code == -1
    with pytest.raises(InputError, match="being closed"):
        commands.run("--version")


def test_a_process_that_took_over_the_number_is_not_interrupted(warm, home):
    running = warm.launch(["site", "status", str(home), "--watch"])
    os.kill(running.process, signal.SIGKILL)
    wait_for(lambda: running.ended)
    with subprocess.Popen(["sleep", "60"]) as other:
        running.process = other.pid
        running.interrupt()
        running.result()
        running.interrupt()
        assert other.poll() is None
        other.kill()


def test_too_many_arguments_do_not_end_the_loaded_process(warm):
    assert warm.run("--version").ok
    process = warm._process
    with pytest.raises(InputError, match="nothing was changed"):
        warm.run("site", "show", "x" * (1 << 20))
    assert warm.run("--version").ok
    assert warm._process is process


def test_an_outcome_that_cannot_be_used_does_not_block_other_actions(warm):
    desk = Desk(warm)

    def fail(finished):
        raise ValueError("sub-somebody")

    job = desk.start("Fail", ["--version"], back="/", seen="0", then=fail)
    assert job.done.wait(60)
    assert not job.finished.ok
    assert "ValueError" in job.finished.error
    assert "somebody" not in job.finished.error
    assert desk.under_way is None


def test_a_stream_that_ends_while_its_command_starts(warm, home):
    """The browser left before the command was started: the command is interrupted then."""
    followed, lines = _Followed(), asyncio.Queue()

    async def follow():
        followed.end()
        await asyncio.to_thread(
            followed.start, warm, ["site", "status", str(home), "--watch"], asyncio.get_running_loop(), lines
        )
        while await asyncio.wait_for(lines.get(), 60) is not None:
            pass

    asyncio.run(follow())


def test_no_module_is_loaded_from_the_current_folder(tmp_path, monkeypatch):
    """A stranger's typer.py in the current folder would run next to the site's key."""
    for name in ("typer", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    commands = Commands("site")
    try:
        assert commands.run("--version").ok
    finally:
        commands.close()
    assert not (tmp_path / "ran").exists()


def test_no_module_of_the_package_is_started_with_the_current_folder_first():
    folder = Path(capedjica.__file__).parent
    lines = [line for file in folder.rglob("*.py") for line in file.read_text().splitlines()]
    starts = [line for line in lines if "sys.executable" in line and '"-m"' in line]
    assert starts
    assert [line for line in starts if 'sys.executable, "-P", "-m"' not in line] == []


def test_a_command_is_shown_as_it_is_typed():
    assert shown(["site", "show", "a folder"]) == "capedjica site show 'a folder'"
