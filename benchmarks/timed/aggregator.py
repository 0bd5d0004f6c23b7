"""The aggregator of a study with a clock in hand; for benchmarks only."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from benchmarks.timed.slots import slot_of
from capedjica.algorithms.ica.infomax import Infomax
from capedjica.coordinator.flare.transport import Courier
from capedjica.flare.parcels import TRANSIT_SECONDS, write_parcel
from capedjica.mechanisms.messages import question_hash

Notes = dict[str, list[tuple[float, ...]]]


@contextmanager
def timed(probes: int) -> Iterator[Notes]:
    """Have runs go to the last iteration agreed on, and note how long their exchanges take.

    Once all sites have joined, they are first asked so many times for the answer to a question that was never
    put; then the slot, beginning and end of each release are noted.
    """
    notes: Notes = {"bare": [], "asked": []}
    exchange, gather = Courier.exchange, Courier.gather

    def timed_exchange(self: Courier, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        began = time.perf_counter()
        answers = exchange(self, questions)
        question = next(iter(questions.values()), b"")
        if question[2:5] == b"Ask":
            notes["asked"].append((*slot_of(question), began, time.perf_counter()))
        return answers

    def timed_gather(self: Courier, names: Iterable[str]) -> None:
        names = list(names)
        gather(self, names)
        for _ in range(probes):
            parcel = write_parcel(b"", question_hash(secrets.token_bytes(8)))
            began = time.perf_counter()
            self.send(dict.fromkeys(names, parcel), TRANSIT_SECONDS)
            notes["bare"].append((time.perf_counter() - began,))

    with (
        patch.object(Courier, "exchange", timed_exchange),
        patch.object(Courier, "gather", timed_gather),
        patch.object(Infomax, "converged", property(lambda _: False)),
    ):
        yield notes
