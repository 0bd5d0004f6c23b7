"""Parties of a study on FLARE killed with -9: nothing uncharged, never twice, never beyond the cap."""

from __future__ import annotations

import subprocess

import pytest

from capedjica.errors import InputError, ProtocolError
from tests.faults.flare.flare_faults import (
    CAPEDJICA,
    SITES,
    Running,
    audit,
    audited,
    command,
    gated,
    kill,
    nothing_left,
    wait_until,
)


def run_command(parties):
    return ["run", parties.folder, "--engine", "flare", "--wait", "120", "--silence", "20"]


def start_run(parties):
    words = [*CAPEDJICA, *map(str, run_command(parties))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_job_killed_at_one_site_is_taken_up_with_all(tmp_path):
    """Killed between charge and answer, the worst of moments: FLARE then ends the job at all sites."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        kill(parties.one("s2", "job"))
        parties.let_go("s2", "Ask-1-done")
        running.finish()
        audit(parties)
        assert parties.run_folder.state().resumed == 1
        parties.stop()
        nothing_left(parties, "server", *SITES)


@pytest.mark.full
def test_jobs_killed_one_after_another_end_within_the_budget(tmp_path):
    with gated(tmp_path, reserve=0.3) as parties:
        running = Running(parties)
        for name, moment in [("s1", "Sum"), ("s2", "Ask-0-done"), ("s3", "Ask-2"), ("s4", "Ask-3-done")]:
            parties.hold(name, moment)
            parties.reached(name, moment, running)
            kill(parties.one(name, "job"))
            parties.let_go(name, moment)
        running.finish()
        audit(parties)
        assert parties.run_folder.state().resumed >= 3


@pytest.mark.full
@pytest.mark.parametrize("moment", ["Join", "Sum", "Ask-0-done", "Ask-1", "Ask-2-done", "Ask-3"])
def test_the_others_finish_without_a_site_that_was_killed(tmp_path, moment):
    """All its processes: while it joins, while masks are made, in a release of each stage."""
    with gated(tmp_path) as parties:
        parties.hold("s2", moment)
        running = Running(parties, wait=20.0)
        parties.reached("s2", moment, running)
        parties.kill("s2")
        running.finish()
        audit(parties, ("s1", "s3", "s4"))
        assert "s2" in parties.progress().lost
        assert "s2" in parties.privacy["statement"]
        answered = audited(parties, "s2") > 0
        assert answered == (moment not in ("Join", "Sum", "Ask-0"))


@pytest.mark.full
def test_without_half_of_its_sites_a_run_stops_and_goes_on_when_they_are_back(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s3", "Ask-3-done")
        running = start_run(parties)
        parties.reached("s3", "Ask-3-done")
        parties.kill("s1")
        parties.kill("s3")
        output, _ = running.communicate()
        assert running.returncode == 4, output
        assert "2 sites answered, 3 are needed; missing: s1, s3" in " ".join(output.split())
        nothing_left(parties, "server", "s1", "s3")
        told = command("status", parties.folder)
        assert told.returncode == 12
        assert "3 are needed" in " ".join(told.stdout.split())
        parties.let_go("s3", "Ask-3-done")
        parties.start("s1", "s3")
        resumed = command(*run_command(parties), "--resume")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        audit(parties)
        assert command("status", parties.folder).returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("killed", ["job", "flare", "both"])
def test_a_run_outlives_its_server(tmp_path, killed):
    """Killed when all sites have answered and nothing is written down: the release is charged, and lost."""
    with gated(tmp_path) as parties:
        parties.hold("server", "Mean-1")
        running = Running(parties)
        parties.reached("server", "Mean-1", running)
        job = parties.job("server")
        victims = {"job": [job], "flare": [parties.flare("server")]}
        for process in victims.get(killed) or [*victims["flare"], *victims["job"]]:
            kill(process)
        # A job that outlives FLARE's server would otherwise go on, and write down what is to be lost.
        wait_until(lambda: not job.is_running(), "the job has ended with its server")
        parties.let_go("server", "Mean-1")
        running.finish()
        audit(parties)
        assert "Lost to interruptions" in parties.privacy["statement"]
        nothing_left(parties, "server")


@pytest.mark.full
def test_a_server_killed_with_its_supervisor_ends_the_run_which_goes_on_later(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-3")
        running = Running(parties)
        parties.reached("s2", "Ask-3", running)
        parties.kill("server")
        parties.let_go("s2", "Ask-3")
        with pytest.raises(ProtocolError, match="cannot be reached"):
            running.finish()
        nothing_left(parties, "server")
        parties.run()
        audit(parties)


@pytest.mark.full
def test_a_killed_run_takes_its_server_along_and_the_next_goes_on(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-2-done")
        running = start_run(parties)
        parties.reached("s2", "Ask-2-done")
        with pytest.raises(InputError, match="is being run by another process"):
            parties.run()
        running.kill()
        running.communicate()
        parties.let_go("s2", "Ask-2-done")
        # At once: whatever is left of the server is not used.
        resumed = command(*run_command(parties), "--resume")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        audit(parties)
        nothing_left(parties, "server")
        parties.stop()
        nothing_left(parties, *SITES)


@pytest.mark.full
def test_a_killed_run_leaves_no_process(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-2")
        running = start_run(parties)
        parties.reached("s2", "Ask-2")
        running.kill()
        running.communicate()
        nothing_left(parties, "server")
        told = command("status", parties.folder)
        assert told.returncode == 12
        assert "interrupted" in told.stdout


@pytest.mark.full
def test_a_supervisor_killed_alone_is_replaced(tmp_path):
    """What it left would answer in the site's name beside the new one."""
    with gated(tmp_path) as parties:
        left = parties.flare("s2")
        kill(parties.family("s2")[0])
        parties.start("s2")
        wait_until(lambda: not left.is_running(), "what was left is ended")
        parties.run()
        audit(parties)
        kill(parties.family("s3")[0])
        parties.stop("s3")
        nothing_left(parties, "s3")
