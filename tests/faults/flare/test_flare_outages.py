"""Sites of a study on FLARE that are stopped, cut off, stuck, full, or live on another day."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from capedjica.errors import CapedjicaError
from tests.faults.flare.flare_faults import (
    CAPEDJICA,
    Running,
    audit,
    audited,
    command,
    gated,
    nothing_lost,
    wait_until,
)
from tests.federated.consortium import CALM

pytestmark = pytest.mark.full

OTHERS = ("s1", "s3", "s4")


def root(*words: str) -> bool:
    """Run a command that only root may; whether it worked."""
    if os.geteuid() != 0 or shutil.which(words[0]) is None:
        return False
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(words, **quiet).returncode == 0


def must(*words: str) -> None:
    assert root(*words), " ".join(words)


# Stopped


def test_a_site_that_stands_still_is_given_up_and_does_no_harm_later(tmp_path):
    """Its answer, charged before it stood still, leaves when nobody waits for it any more."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        parties.freeze("s2")
        parties.let_go("s2", "Ask-1-done")
        try:
            running.finish()
        finally:
            parties.thaw("s2")
        audit(parties, OTHERS)
        before = audited(parties, "s2")
        wait_until(lambda: not parties.processes_of("s2")["job"], "its job has ended")
        audit(parties, OTHERS)
        assert audited(parties, "s2") == before > 0


@pytest.mark.parametrize("roles", [("agent",), ("carrier", "job")], ids=["agent", "carrier"])
def test_half_of_a_site_that_stands_still_is_given_up_and_does_no_harm_later(tmp_path, roles):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1-done")
        running = Running(parties)
        parties.reached("s2", "Ask-1-done", running)
        parties.freeze("s2", *roles)
        parties.let_go("s2", "Ask-1-done")
        before = audited(parties, "s2")
        try:
            running.finish()
        finally:
            parties.thaw("s2", *roles)
        audit(parties, OTHERS)
        wait_until(lambda: not parties.processes_of("s2")["job"], "its job has ended")
        audit(parties, OTHERS)
        assert audited(parties, "s2") == before > 0


def test_sites_that_stood_still_take_part_again_without_being_started(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-2")
        running = Running(parties)
        parties.reached("s2", "Ask-2", running)
        for name in ("s2", "s3"):
            parties.freeze(name)
        parties.let_go("s2", "Ask-2")
        try:
            with pytest.raises(CapedjicaError, match="2 sites answered, 3 are needed") as stopped:
                running.finish()
        finally:
            for name in ("s2", "s3"):
                parties.thaw(name)
        assert stopped.value.exit_code == 4
        parties.run()
        audit(parties)


# Stuck


def test_a_site_that_computes_for_ever_is_given_up_after_the_limit_of_its_stage(tmp_path):
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1")
        Running(parties, patience=replace(CALM, release=20.0)).finish()
        audit(parties, OTHERS)
        assert parties.progress().lost["s2"] == "time limit exceeded"
        wait_until(lambda: not parties.processes_of("s2")["job"], "its job has ended")


# Cut off


@contextmanager
def network_of_its_own(name: str, host: str, guest: str):
    """Have a network namespace at the end of a cable; skip where that is not allowed."""
    if not root("ip", "netns", "add", name):
        pytest.skip("network namespaces are not allowed here")
    try:
        must("ip", "link", "add", f"{name}-h", "type", "veth", "peer", "name", f"{name}-g", "netns", name)
        must("ip", "addr", "add", f"{host}/24", "dev", f"{name}-h")
        must("ip", "link", "set", f"{name}-h", "up")
        must("ip", "-n", name, "addr", "add", f"{guest}/24", "dev", f"{name}-g")
        must("ip", "-n", name, "link", "set", f"{name}-g", "up")
        must("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        root("ip", "link", "delete", f"{name}-h")
        root("ip", "netns", "delete", name)


def test_a_cut_of_20_seconds_is_bridged(tmp_path):
    space, host = f"cape{os.getpid()}", f"10.77.{os.getpid() % 250}.1"
    with (
        network_of_its_own(space, host, f"{host[:-1]}2"),
        gated(tmp_path, host=host, started=False) as parties,
    ):
        parties.start(*OTHERS)
        must("ip", "netns", "exec", space, *CAPEDJICA, "site", "start", str(parties.home("s2").folder))
        parties.hold("s2", "Ask-1")
        running = Running(parties, patience=replace(CALM, silence=90.0))
        parties.reached("s2", "Ask-1", running)
        must("ip", "link", "set", f"{space}-h", "down")
        parties.let_go("s2", "Ask-1")
        time.sleep(20)
        must("ip", "link", "set", f"{space}-h", "up")
        running.finish()
        audit(parties)
        nothing_lost(parties)


# Full


@contextmanager
def small_disk(place: Path):
    """Have a disk of 4 MB at a place; skip where that is not allowed."""
    place.mkdir()
    if not root("mount", "-t", "tmpfs", "-o", "size=4m", "capedjica", str(place)):
        pytest.skip("disks cannot be mounted here")
    try:
        yield place
    finally:
        must("umount", "--lazy", str(place))


def keep_ledger_on(disk: Path) -> None:
    settings = disk.parent / "site.toml"
    text = settings.read_text()
    assert '"ledger.sqlite"' in text
    settings.write_text(text.replace('"ledger.sqlite"', f'"{disk.name}/ledger.sqlite"'))


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("full", [("s2",), ("s2", "s3")])
def test_a_site_whose_disk_is_full_refuses_and_goes_on_when_there_is_room(tmp_path, full):
    disks = [tmp_path / "study" / "sites" / name / "disk" for name in full]
    with contexts(disks) as prepare, gated(tmp_path, prepare=prepare) as parties:
        parties.hold("s2", "Ask-1")
        running = Running(parties)
        parties.reached("s2", "Ask-1", running)
        for disk in disks:
            fill(disk)
        parties.let_go("s2", "Ask-1")
        if len(full) == 1:
            running.finish()
        else:
            with pytest.raises(CapedjicaError, match="3 are needed"):
                running.finish()
        log = (parties.home("s2").folder / "site.log").read_text()
        assert "refused: " in log
        assert "disk" in log
        for disk in disks:
            (disk / "filling").unlink()
        spent = audited(parties, "s2")
        parties.run()
        if len(full) == 1:
            audit(parties, OTHERS, also_heard=("s2",))
        else:
            audit(parties)
        assert audited(parties, "s2") >= spent
        parties.stop()


@contextmanager
def contexts(disks):
    """Yield what mounts a disk for each ledger of a study, once its folders are there."""
    with ExitStack() as mounted:

        def prepare(study) -> None:
            for disk in disks:
                mounted.enter_context(small_disk(disk))
                keep_ledger_on(disk)

        yield prepare


SMALL = 1 << 30


def test_a_carrier_that_takes_all_its_memory_dies_and_is_started_again(tmp_path):
    """At its own limit, not at that of the machine; nothing that the site keeps is in it."""
    with gated(tmp_path, started=False) as parties:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("CAPEDJICA_TEST_MEMORY", str(SMALL))
            parties.start("s2")
        parties.start(*OTHERS)
        parties.hold("s2", "Ask-1")
        running = Running(parties, patience=replace(CALM, silence=90.0))
        parties.reached("s2", "Ask-1", running)
        agent, home = parties.one("s2", "agent"), parties.kit("s2").workspace
        flooded = parties.members("s2", "carrier", "job")
        (home / "flood").touch()
        wait_until(lambda: not any(one.is_running() for one in flooded), "the carrier has died")
        taken = [int((home / f"flooded-{one.pid}").read_text()) for one in flooded]
        assert all(SMALL / 4 < one < SMALL for one in taken), taken
        parties.let_go("s2", "Ask-1")
        running.finish()
        assert agent.is_running()
        audit(parties)
        nothing_lost(parties)


# On another day

# libfaketime also touches the clock that sleeping goes by, and Python then cannot sleep.
CALENDAR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += DAYS * 86400;
    return failed;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""


@contextmanager
def another_day(days: int, folder: Path):
    """Let processes that are started here live on another day; skip where there is no C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source, library = folder / "calendar.c", folder / "calendar.so"
    source.write_text(CALENDAR)
    subprocess.run(["cc", "-shared", "-fPIC", f"-DDAYS=({days})", "-o", library, source, "-ldl"], check=True)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("LD_PRELOAD", str(library))
        yield


def test_a_site_whose_clock_is_a_day_fast_takes_part(tmp_path):
    with gated(tmp_path, started=False) as parties:
        with another_day(+1, parties.kit("s2").workspace):
            parties.start("s2")
        parties.start(*OTHERS)
        parties.run()
        audit(parties)


def test_a_site_whose_clock_is_a_day_slow_is_told_and_cannot_connect(tmp_path):
    """The certificates are not valid yet: if it is started all the same, the others go on without it."""
    with gated(tmp_path, started=False) as parties:
        # The confined carrier reads nothing else, also not the library that sets its calendar.
        with another_day(-1, parties.kit("s2").workspace):
            told = command("site", "start", parties.home("s2").folder)
            parties.start("s2")
        assert told.returncode == 2
        assert "set the clock" in " ".join(told.stderr.split())
        parties.start(*OTHERS)
        parties.run(wait=40.0)
        audit(parties, OTHERS)
