"""The aggregator of a study, as FLARE runs it, with a clock in hand; for benchmarks only."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.timing import PROBES, TIMES, slot_of
from capedjica.algorithms.ica.infomax import Infomax
from capedjica.coordinator.flare.courier import Courier, Send
from capedjica.coordinator.flare.party import AggregatorParty
from capedjica.flare.parcels import TRANSIT_SECONDS, write_parcel


class TimedAggregator(AggregatorParty):
    """Notes how long each exchange takes, and how long one does that asks for nothing."""

    def conduct(self, send: Send, settings: Path, ended: Callable[[], bool]) -> None:
        """Run the study to the last iteration agreed on, whether or not it has converged."""
        Infomax.converged = property(lambda _: False)  # type: ignore[assignment,method-assign]
        notes = _watch_courier()
        super().conduct(send, settings, ended)
        (settings.parent / TIMES).write_text(json.dumps(notes))


def _watch_courier() -> dict[str, list[tuple[float, ...]]]:
    """Note the bare round trips once all have joined; and the slot, beginning and end of each release."""
    notes: dict[str, list[tuple[float, ...]]] = {"bare": [], "asked": []}
    exchange, gather = Courier.exchange, Courier.gather

    def timed_exchange(self: Courier, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        began = time.perf_counter()
        answers = exchange(self, questions)
        question = next(iter(questions.values()), b"")
        if question[2:5] == b"Ask":
            notes["asked"].append((*slot_of(question), began, time.perf_counter()))
        return answers

    def timed_gather(self: Courier, names: Iterable[str], ended: Callable[[], bool] = lambda: False) -> None:
        names = list(names)
        gather(self, names, ended)
        for _ in range(int(os.environ[PROBES])):
            parcel = write_parcel(secrets.token_bytes(8), None)
            began = time.perf_counter()
            self.send(dict.fromkeys(names, parcel), TRANSIT_SECONDS)
            notes["bare"].append((time.perf_counter() - began,))

    Courier.exchange, Courier.gather = timed_exchange, timed_gather  # type: ignore[method-assign]
    return notes
