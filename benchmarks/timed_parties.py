"""The aggregator and a site of a study, as FLARE runs them, with a clock in hand; for benchmarks only.

What a site measures stays in its own folder, as everything else does.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from numpy import int64
from numpy.typing import NDArray

from capedjica.algorithms.ica.infomax import Infomax
from capedjica.engines.flare import carriage
from capedjica.engines.flare.carriage import VERSION, Courier, Parcel, Revocable, Send
from capedjica.mechanisms.messages import Ask
from capedjica.mechanisms.release import ReleasePlan
from capedjica.mechanisms.site.answering import Site
from capedjica.study.federated.federation import SETTINGS
from capedjica.study.federated.parties import AggregatorParty, SiteParty

TIMES: Final = "times.json"
PROBES: Final = "CAPEDJICA_BENCHMARK_PROBES"


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
            notes["asked"].append((*_slot(question), began, time.perf_counter()))
        return answers

    def timed_gather(self: Courier, names: Iterable[str], ended: Callable[[], bool] = lambda: False) -> None:
        names = list(names)
        gather(self, names, ended)
        for _ in range(int(os.environ[PROBES])):
            parcel = msgspec.msgpack.encode(Parcel(VERSION, secrets.token_bytes(8), None))
            began = time.perf_counter()
            self.send(dict.fromkeys(names, parcel), carriage.TRANSIT_SECONDS)
            notes["bare"].append((time.perf_counter() - began,))

    Courier.exchange, Courier.gather = timed_exchange, timed_gather  # type: ignore[method-assign]
    return notes


def _slot(question: bytes) -> tuple[float, float]:
    _, _, _, block, slot, *_ = msgspec.msgpack.decode(question)
    return block, slot


class TimedSite(SiteParty):
    """Notes how long it computes for each release, and how long until its answer is ready."""

    def __init__(self, study: str, insecure_noise_seed: int | None = None) -> None:
        super().__init__(study, insecure_noise_seed)
        self._notes: list[tuple[float, float, float]] = []
        self._place: Path | None = None

    def open(self, settings: Path) -> Revocable:
        """Return the site's answers, timed."""
        handle = super().open(settings)
        self._place = Path(json.loads((settings / SETTINGS).read_text())["site"]) / TIMES
        computing: list[float] = []
        _watch_site(handle.handle.__self__, computing)  # type: ignore[attr-defined]

        def timed(question: bytes) -> bytes:
            began = time.perf_counter()
            answer = handle(question)
            if question[2:5] == b"Ask":
                seconds = time.perf_counter() - began
                self._notes.append((*_slot(question), computing.pop(), seconds))  # type: ignore[arg-type]
            return answer

        return Revocable(timed, handle.stands)

    def close(self) -> None:
        """Write down what was noted, beside the site's other files."""
        super().close()
        if self._place is not None:
            self._place.write_text(json.dumps(self._notes))


def _watch_site(site: Site, computing: list[float]) -> None:
    """Note how long the subjects' vectors take, from data to their sum."""
    compute = site._sum_subjects

    def timed(ask: Ask, plan: ReleasePlan, published: bytes) -> NDArray[int64]:
        began = time.perf_counter()
        total = compute(ask, plan, published)
        computing.append(time.perf_counter() - began)
        return total

    site._sum_subjects = timed  # type: ignore[method-assign]
