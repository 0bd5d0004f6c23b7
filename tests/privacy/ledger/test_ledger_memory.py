"""The ledger in memory decides as the one on disk does; it only forgets when its process ends."""

import os
import random
import subprocess
import sys

import pytest

from capedjica.errors import CapedjicaError
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Policy, StorageError
from capedjica.privacy.ledger.memory import memory_ledger
from tests.privacy.ledger.ledger_site import DELTA, POLICY, STUDY, Site, ask, begin, digest, refuse_to_make
from tests.support.places import ROOT


def outcome(action):
    """What an action returned, or the kind of error it raised."""
    try:
        return action()
    except CapedjicaError as error:
        return type(error)


def random_step(chance):
    """One thing that can be asked of a ledger, to be done to several of them alike."""
    study, block, slot = digest(f"study {chance.randrange(3)}"), chance.randrange(4), chance.randrange(4)
    mu, message = chance.choice((0.05, 0.3, 1.0)), chance.randbytes(9)
    make = chance.choice((lambda: message, lambda: message, refuse_to_fail))
    request = digest(f"request {chance.randrange(2)}")
    return chance.choice(
        [
            lambda ledger: ledger.register_study(study, "Resting state", Cap(2.0, DELTA)),
            lambda ledger: ledger.claim(study, block, 0),
            lambda ledger: ledger.record_abort(study, block, 0, slot, "a site was lost"),
            lambda ledger: ledger.check_affordable(study, mu**2),
            lambda ledger: ledger.last_block(study),
            *[
                lambda ledger: ask(
                    ledger,
                    slot,
                    study=study,
                    block=block,
                    mu=mu,
                    request_hash=request,
                    make_message=make,
                )
            ]
            * 6,
        ]
    )


def refuse_to_fail():
    raise StorageError("no message could be made")


@pytest.mark.parametrize("seed", range(4))
def test_both_ledgers_take_the_same_decisions(tmp_path, seed):
    chance, kinds = random.Random(seed), set()
    in_memory = memory_ledger(POLICY)
    with Site(tmp_path).open() as on_disk:
        for _ in range(120):
            step = random_step(chance)
            results = [
                outcome(lambda step=step, ledger=ledger: step(ledger)) for ledger in (on_disk, in_memory)
            ]
            assert results[0] == results[1]
            kinds.add(results[0] if isinstance(results[0], type) else type(results[0]))
        assert on_disk.totals() == in_memory.totals()
        assert [sent.message for sent in on_disk.outbox()] == [sent.message for sent in in_memory.outbox()]
        # the file begins with an entry of its own
        assert [entry.kind for entry in on_disk.entries()[1:]] == [
            entry.kind for entry in in_memory.entries()
        ]
    assert len(kinds) >= 6


def test_an_error_in_the_middle_leaves_nothing_behind():
    ledger = memory_ledger(Policy(Cap(1.0, DELTA), Cap(1.0, DELTA)))
    begin(ledger, 1.0)
    with pytest.raises(StorageError):
        ask(ledger, make_message=refuse_to_fail)
    assert ledger.totals().overall.n_releases == 0
    assert [entry.kind for entry in ledger.entries()] == ["study", "claim", "burn"]
    assert ledger.spent(STUDY) == 0


def test_a_closed_ledger_serves_no_more():
    with begin_in_memory() as ledger:
        ask(ledger)
    with pytest.raises(StorageError, match="is closed"):
        ask(ledger, make_message=refuse_to_make)


def begin_in_memory():
    return begin(memory_ledger(POLICY))


FORK = """
import os
from tests.privacy.ledger.ledger_site import ask, refuse_to_make
from tests.privacy.ledger.test_ledger_memory import begin_in_memory
ledger = begin_in_memory()
if os.fork() == 0:
    try:
        ask(ledger, make_message=refuse_to_make)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_cannot_answer_with_its_parents_masks():
    result = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("StorageError a ledger cannot be used after a fork")
