"""A ledger fails in the middle of a study: its site falls silent, the others carry on, nothing is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.mechanisms.messages import Answer, Refusal, encode
from capedjica.privacy.ledger import StorageError
from tests.faults.test_ledger_storage import file_size_limit, no_new, small_disk
from tests.mechanisms.consortium import DATA, Consortium, reply
from tests.mechanisms.world import clipped_mean

VICTIM = "s1"
OTHERS = {name: rows for name, rows in DATA.items() if name != VICTIM}


def path_of(consortium):
    return consortium.places[VICTIM] / f"{VICTIM}.sqlite"


@contextmanager
def locked(consortium) -> Iterator[None]:
    holder = sqlite3.connect(path_of(consortium), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.close()


@contextmanager
def read_only(consortium) -> Iterator[None]:
    log = consortium.ledgers[VICTIM]._chain._log
    log._execute("PRAGMA query_only = ON")
    yield
    log._execute("PRAGMA query_only = OFF")


@contextmanager
def full(consortium) -> Iterator[None]:
    """While the victim works, no file can be written beyond its first page."""
    site = consortium.sites[VICTIM]
    handle = site.handle

    def handle_on_full_disk(data):
        with file_size_limit(4096):
            return handle(data)

    site.handle = handle_on_full_disk
    yield
    site.handle = handle


@contextmanager
def head_lost(consortium) -> Iterator[None]:
    with no_new(consortium.places[VICTIM] / f"{VICTIM}.head"):
        yield


@contextmanager
def corrupt(consortium) -> Iterator[None]:
    whole = path_of(consortium).read_bytes()
    path_of(consortium).write_bytes(b"\xff" * 100 + whole[100:])
    yield
    path_of(consortium).write_bytes(whole)


def check_victim(consortium, n_releases):
    """Recorded is what was charged; the first message is there; a wrong or second one never left."""
    ledger = consortium.ledgers[VICTIM]
    ledger.verify_chain()
    recorded = {sent.message for sent in ledger.outbox()}
    sent = {
        encode(said)
        for _, answers in consortium.calls
        if VICTIM in answers and isinstance(said := reply(answers[VICTIM]), Answer)
    }
    assert sent <= recorded
    assert len(recorded) == n_releases
    mus = [msgspec.msgpack.decode(message, type=Answer).mu for message in recorded]
    assert consortium.spent(VICTIM) == pytest.approx(sum(mu**2 for mu in mus), rel=1e-12)


@pytest.mark.parametrize(
    ("fault", "recorded"),
    [(locked, 1), (read_only, 1), (full, 1), (corrupt, 1), (head_lost, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_ledger_fails_in_the_middle_of_a_study(tmp_path, fault, recorded):
    with Consortium(tmp_path, timeout=0.05, reserve=0.3) as consortium:
        aggregator = consortium.aggregator
        aggregator.mean(0)
        first, answers = consortium.last_ask()
        with fault(consortium):
            values = [aggregator.mean(0), aggregator.mean(0)]
        done = [release for release in aggregator.releases if not release.aborted]
        assert [VICTIM in release.participants for release in done] == [True, False, False]
        for value, release in zip(values, done[1:], strict=True):
            assert np.abs(value - clipped_mean(OTHERS)).max() < 6 * release.noise
        assert sum(release.aborted for release in aggregator.releases) == 1
        for name in OTHERS:
            charged = sum(release.mu[name] ** 2 for release in aggregator.releases)
            assert consortium.spent(name) == pytest.approx(charged, rel=1e-12)
        # Nothing was lost: after a restart the first answer is there, and the study goes on with the site.
        consortium.start(VICTIM)
        check_victim(consortium, recorded)
        assert consortium.sites[VICTIM].handle(first) == answers[VICTIM]
        aggregator._block = None
        aggregator.mean(0)
        assert VICTIM in aggregator.releases[-1].participants
        check_victim(consortium, recorded + 1)


def fill(disk):
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))


def test_a_disk_that_is_really_full(tmp_path):
    with (
        small_disk(tmp_path / "disk", "200k") as disk,
        Consortium(tmp_path, places={VICTIM: disk}, reserve=0.3) as consortium,
    ):
        consortium.aggregator.mean(0)
        fill(disk)
        value = consortium.aggregator.mean(0)
        last = consortium.aggregator.releases[-1]
        assert VICTIM not in last.participants
        assert np.abs(value - clipped_mean(OTHERS)).max() < 6 * last.noise
        (disk / "filler").unlink()
        consortium.start(VICTIM)
        check_victim(consortium, 1)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: path.write_bytes(b"not a ledger" * 500), StorageError),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), StorageError),
        (lambda path: edit(path, "PRAGMA user_version = 9"), InputError),
    ],
    ids=["no ledger", "cut off", "newer"],
)
def test_a_site_that_cannot_open_its_ledger_does_not_start(tmp_path, damage, error):
    """And the others do without it."""
    with Consortium(tmp_path, reserve=0.3) as consortium:
        consortium.ledgers[VICTIM].close()
        del consortium.sites[VICTIM]
        damage(path_of(consortium))
        with pytest.raises(error) as refused:
            consortium.open_ledger(VICTIM)
        assert "\n" not in str(refused.value)
        consortium.aggregator.mean(0)
        assert consortium.aggregator.releases[-1].participants == tuple(OTHERS)


def edit(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.close()


def test_a_refusal_for_want_of_storage_says_nothing_about_the_storage(tmp_path):
    with Consortium(tmp_path, timeout=0.05) as consortium:
        consortium.aggregator.mean(0)
        with locked(consortium):
            consortium.aggregator.mean(0)
        refusals = {
            reply(answers[VICTIM]).reason
            for _, answers in consortium.calls
            if VICTIM in answers and isinstance(reply(answers[VICTIM]), Refusal)
        }
        assert refusals == {f"site {VICTIM} cannot answer; its own log says why"}
