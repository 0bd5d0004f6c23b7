"""What a site computes of its subjects for a release, as those who write an analysis hand it over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from capedjica.tools.arrays import Scan

# One row per subject, a few subjects at a time.
Vectors = Scan
# ``statistics(stage, published, state)`` yields the subjects' vectors.
Statistics = Callable[[int, bytes, bytes], Iterable[Vectors]]
