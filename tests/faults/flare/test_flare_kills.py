"""Parties of a study on FLARE killed with -9: nothing uncharged, never twice, never beyond the cap."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import psutil
import pytest

from capedjica.coordinator.flare.remote_run import StoppedError
from capedjica.errors import InputError
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
    nothing_lost,
    wait_until,
)
from tests.federated.consortium import CALM

# Longer than what was killed takes to come back.
PATIENT = replace(CALM, silence=90.0)


def run_command(parties):
    return ["run", parties.folder, "--engine", "flare", "--wait", "120", "--silence", "20"]


def start_run(parties):
    words = [*CAPEDJICA, *map(str, run_command(parties))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# A carrier, which keeps nothing


@pytest.mark.full
def test_a_job_killed_at_one_site_is_taken_up_with_all(tmp_path):
    """Killed between charge and answer, the worst of moments: FLARE then ends the job at all sites."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        parties.kill("s2", "job")
        parties.let_go("s2", "Ask-1-done")
        running.finish()
        audit(parties)
        nothing_lost(parties)
        parties.stop()
        nothing_left(parties, "server", *SITES)


@pytest.mark.full
def test_jobs_killed_one_after_another_end_within_the_budget(tmp_path):
    with gated(tmp_path) as parties:
        running = Running(parties)
        for name, moment in [("s1", "Sum"), ("s2", "Ask-0-done"), ("s3", "Ask-2"), ("s4", "Ask-3-done")]:
            parties.hold(name, moment)
            parties.reached(name, moment, running)
            parties.kill(name, "job")
            parties.let_go(name, moment)
        running.finish()
        audit(parties)
        nothing_lost(parties)


def outlive_jobs_of_the_server(folder, *moments: str) -> None:
    """Kill the server's job at each of these moments of a site; the run completes as if nothing had been."""
    with gated(folder) as parties:
        for moment in moments:
            parties.hold("s2", moment)
        running = Running(parties)
        for moment in moments:
            parties.reached("s2", moment, running)
            gone = parties.one("server", "job")
            kill(gone)
            parties.let_go("s2", moment)
            parties.replaced("server", "job", gone)
        running.finish()
        audit(parties)
        nothing_lost(parties)


def test_two_jobs_of_the_server_killed_cost_no_site_a_second_charge(tmp_path):
    outlive_jobs_of_the_server(tmp_path, "Ask-1", "Ask-1-done")


@pytest.mark.full
def test_five_jobs_of_the_server_killed_cost_no_site_a_second_charge(tmp_path):
    outlive_jobs_of_the_server(tmp_path, "Hello", "Sum", "Ask-1", "Ask-1-done", "Ask-3")


@pytest.mark.full
@pytest.mark.parametrize("moment", ["Sum", "Ask-1", "Ask-1-done"])
def test_a_carrier_killed_alone_leaves_masks_and_answers_with_the_agent(tmp_path, moment):
    with gated(tmp_path) as parties:
        parties.hold("s2", moment)
        running = Running(parties, patience=PATIENT)
        parties.reached("s2", moment, running)
        agent = parties.one("s2", "agent")
        parties.kill("s2", "carrier", "job")
        parties.let_go("s2", moment)
        running.finish()
        assert agent.is_running()
        audit(parties)
        nothing_lost(parties)


@pytest.mark.full
@pytest.mark.parametrize("killed", [("job",), ("server",), ("server", "job")], ids="-".join)
def test_a_run_outlives_its_server(tmp_path, killed):
    """Killed when all sites are charged and one answer is on the way: it is asked for again, and is there."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        parties.kill("server", *killed)
        parties.let_go("s2", "Ask-1-done")
        running.finish()
        audit(parties)
        nothing_lost(parties)
        nothing_left(parties, "server")


@pytest.mark.full
@pytest.mark.parametrize("fault", ["killed", "standing still"])
def test_a_run_outlives_its_dispatcher(tmp_path, fault):
    """Gone when it is needed: it is to hand over another job, for one that is killed with it."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        dispatcher, job = parties.one("server", "dispatcher"), parties.one("server", "job")
        (kill if fault == "killed" else psutil.Process.suspend)(dispatcher)
        kill(job)
        parties.let_go("s2", "Ask-1-done")
        if fault == "killed":
            parties.replaced("server", "dispatcher", dispatcher)
        else:
            wait_until(lambda: "another is submitted" in parties.run_folder.log_path.read_text(), "its order")
            dispatcher.resume()
        parties.replaced("server", "job", job)
        running.finish()
        audit(parties)
        nothing_lost(parties)


@pytest.mark.full
def test_a_dispatcher_killed_alone_is_not_noticed(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1")
        running = Running(parties)
        parties.reached("s2", "Ask-1", running)
        dispatcher, job = parties.one("server", "dispatcher"), parties.one("server", "job")
        kill(dispatcher)
        parties.replaced("server", "dispatcher", dispatcher)
        assert parties.one("server", "job") == job
        parties.let_go("s2", "Ask-1")
        running.finish()
        audit(parties)
        nothing_lost(parties)


# An agent, which keeps the masks


@pytest.mark.full
@pytest.mark.parametrize("with_it", [(), ("carrier", "job")], ids=["alone", "with its carrier"])
@pytest.mark.parametrize("moment", ["Sum", "Ask-1", "Ask-1-done"])
def test_a_killed_agent_comes_back_without_masks_and_with_its_ledger(tmp_path, moment, with_it):
    """What it had charged it repeats, uncharged; for the rest new masks are made, with it or without."""
    with gated(tmp_path, reserve=0.3) as parties:
        parties.hold("s2", moment)
        running = Running(parties, patience=PATIENT)
        parties.reached("s2", moment, running)
        agent = parties.one("s2", "agent")
        before = audited(parties, "s2")
        assert (before > 0) == (moment != "Sum")
        parties.kill("s2", "agent", *with_it)
        parties.let_go("s2", moment)
        parties.replaced("s2", "agent", agent)
        running.finish()
        assert parties.run_folder.state().resumed == 0
        took_part = audited(parties, "s2") > before
        # Out of a secure sum others go on with the masks that are made, here to the end of the study.
        assert took_part or moment == "Sum"
        survivors = SITES if took_part else tuple(name for name in SITES if name != "s2")
        audit(parties, survivors, also_heard=tuple(parties.privacy["sites"]))


# A whole site


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
        assert "3 are needed; missing: s1, s3" in " ".join(output.split())
        assert "This attempt spent nothing" not in output
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


# The server with its supervisor, and the process that runs the study


@pytest.mark.full
def test_a_server_killed_with_its_supervisor_ends_the_run_which_goes_on_later(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-3")
        running = Running(parties)
        parties.reached("s2", "Ask-3", running)
        parties.kill("server")
        parties.let_go("s2", "Ask-3")
        with pytest.raises(StoppedError, match="cannot be reached") as stopped:
            running.finish()
        assert stopped.value.exit_code == 4
        nothing_left(parties, "server")
        parties.run()
        audit(parties)


@pytest.mark.full
def test_a_killed_run_takes_its_server_along_and_the_next_goes_on(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-2-done")
        running = start_run(parties)
        parties.reached("s2", "Ask-2-done")
        with pytest.raises(InputError, match="is already being run by another process"):
            parties.run()
        running.kill()
        running.communicate()
        parties.let_go("s2", "Ask-2-done")
        # At once: whatever is left of the server is not used.
        resumed = command(*run_command(parties), "--resume")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        audit(parties)
        assert parties.run_folder.state().resumed == 1
        nothing_left(parties, "server")
        parties.stop()
        nothing_left(parties, *SITES)


@pytest.mark.full
def test_a_run_killed_before_it_wrote_down_a_mean_has_lost_it_and_says_so(tmp_path):
    """All sites are charged, and the answers were in the memory of the process that is gone."""
    with gated(tmp_path) as parties:
        parties.hold("server", "Mean-1")
        running = start_run(parties)
        parties.reached("server", "Mean-1")
        running.kill()
        running.communicate()
        parties.let_go("server", "Mean-1")
        resumed = command(*run_command(parties), "--resume")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        audit(parties)
        assert parties.run_folder.state().resumed == 1
        assert "Lost to interruptions" in parties.privacy["statement"]


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


def runs_flare(members) -> bool:
    """Whether a carrier is past its launcher, and the script that comes after."""
    return any("nvflare" in word for process in members for word in process.cmdline())


@pytest.mark.full
def test_a_supervisor_killed_alone_is_replaced(tmp_path):
    """What it left would answer in the site's name beside the new one."""
    with gated(tmp_path) as parties:
        wait_until(
            lambda: all(parties.processes_of("s2")[role] for role in ("agent", "carrier")), "both began"
        )
        left = parties.members("s2", "agent", "carrier")
        kill(parties.one("s2", "supervisor"))
        parties.start("s2")
        wait_until(lambda: not any(one.is_running() for one in left), "what was left is ended")
        parties.run()
        audit(parties)
        nothing_lost(parties)
        kill(parties.one("s3", "supervisor"))
        parties.stop("s3")
        nothing_left(parties, "s3")


@pytest.mark.full
def test_a_supervisor_killed_alone_during_a_run_is_not_noticed(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1")
        running = Running(parties)
        parties.reached("s2", "Ask-1", running)
        left = parties.members("s2", "agent", "carrier", "job")
        kill(parties.one("s2", "supervisor"))
        parties.let_go("s2", "Ask-1")
        running.finish()
        assert all(one.is_running() for one in left[:2])
        audit(parties)
        nothing_lost(parties)
        parties.stop("s2")
        nothing_left(parties, "s2")
