"""A site's part in a study with a clock in hand; for benchmarks only.

What a site measures stays in its own folder, as everything else does.
"""

from __future__ import annotations

import json
import time
from typing import Any

from numpy import int64
from numpy.typing import NDArray

from benchmarks.timed.slots import TIMES, slot_of
from capedjica.mechanisms.messages import Ask
from capedjica.mechanisms.release import ReleasePlan
from capedjica.mechanisms.site.answering import Site
from capedjica.site.agent.study_session import SiteParty


class TimedSite(SiteParty):
    """Notes how long it computes for each release, and how long until its answer is ready."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._notes: list[tuple[float, float, float, float]] = []
        self._computing: list[float] = []

    def _join(self) -> Site:
        site = super()._join()
        _watch_site(site, self._computing)
        return site

    def handle(self, question: bytes) -> bytes:
        """Return the answer, timed."""
        began = time.perf_counter()
        answer = super().handle(question)
        if question[2:5] == b"Ask":
            seconds = time.perf_counter() - began
            self._notes.append((*slot_of(question), self._computing.pop(), seconds))
        return answer

    def close(self) -> None:
        """Write down what was noted, beside the site's other files."""
        super().close()
        (self._home.folder / TIMES).write_text(json.dumps(self._notes))


def _watch_site(site: Site, computing: list[float]) -> None:
    """Note how long the subjects' vectors take, from data to their sum."""
    compute = site._sum_subjects

    def timed(ask: Ask, plan: ReleasePlan, published: bytes) -> NDArray[int64]:
        began = time.perf_counter()
        total = compute(ask, plan, published)
        computing.append(time.perf_counter() - began)
        return total

    site._sum_subjects = timed  # type: ignore[method-assign]
