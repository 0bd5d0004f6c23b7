"""A site of a study, as FLARE runs it, with a clock in hand; for benchmarks only.

What a site measures stays in its own folder, as everything else does.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from numpy import int64
from numpy.typing import NDArray

from benchmarks.timing import TIMES, slot_of
from capedjica.flare.kit import SETTINGS
from capedjica.mechanisms.messages import Ask
from capedjica.mechanisms.release import ReleasePlan
from capedjica.mechanisms.site.answering import Site
from capedjica.site.flare.desk import Revocable
from capedjica.site.flare.party import SiteParty


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
                self._notes.append((*slot_of(question), computing.pop(), seconds))  # type: ignore[arg-type]
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
