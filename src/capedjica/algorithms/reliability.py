"""Reliability of maps as a grade and in words, used wherever maps are shown.

The *stability* of a map (:mod:`capedjica.algorithms.ica.maps.networks`) is its predicted correlation with
that of another run of the same study with fresh noise. Its *grade* is

======  ==================
good    0.9 and above
fair    0.7 and above
poor    below 0.7
======  ==================

Two maps with correlation r share r^2 of their variance: about four fifths at 0.9, less than half below 0.7. A
poor map is not reliable, and should not be presented as a network. The grade refers only to the noise: a map
can be stable and yet meaningless. Maps that start from a template are trivially stable, so in that case the
grade is that of their difference from the template; if it is poor, the map should be read as the template's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

Grade = Literal["good", "fair", "poor"]
# Minimum stability of each grade, best first; below the last one a map is poor.
GRADES: Final[dict[Grade, float]] = {"good": 0.9, "fair": 0.7}
RELIABLE: Final = GRADES["fair"]


def grade(stability: float) -> Grade:
    """Return the grade of one map; poor if its stability is NaN."""
    return next((name for name, least in GRADES.items() if stability >= least), "poor")


def rounded(stability: float) -> str:
    """Return a stability with two digits, rounded down, so that it never looks better than its grade."""
    # Add half a millionth, because 0.7 is slightly less than 0.7 in binary.
    return f"{math.floor(100 * stability + 5e-7) / 100:.2f}"


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability of the maps of one analysis, in words.

    Attributes
    ----------
    n_maps : int
        Number of maps R.
    stability : array (R,), optional
        Stability of each map; None if the method cannot predict it.
    noisy : bool
        Whether noise was added. Without noise nothing is predicted about another run, but maps that are too
        weak compared with others to be found still have a stability of 0.
    of_difference : bool
        Whether it is the stability of the difference from a template.
    """

    n_maps: int
    stability: FloatArray | None = None
    noisy: bool = True
    of_difference: bool = False

    @property
    def grades(self) -> list[Grade] | None:
        """Grade of each map; None if unknown."""
        return None if self.stability is None else [grade(float(value)) for value in self.stability]

    def poor(self, index: int) -> bool:
        """Return whether a map is known to be unreliable and is shown faded; a template's own map is not."""
        return self.grades is not None and not self.of_difference and self.grades[index] == "poor"

    @property
    def n_reliable(self) -> int | None:
        """Number of maps, or differences from a template, that are good or fair; None if unknown."""
        return None if self.grades is None else self.n_maps - self.grades.count("poor")

    @property
    def networks(self) -> bool:
        """Whether all maps may be called networks."""
        return self.of_difference or self.n_reliable in (None, self.n_maps)

    @property
    def known(self) -> bool:
        """Whether a statement about another run with fresh noise is possible."""
        return self.noisy and self.stability is not None

    @property
    def banner(self) -> str:
        """Warning shown before the maps; empty if there is nothing to warn about."""
        if self.stability is None:
            return _UNKNOWN if self.noisy else ""
        if self.of_difference:
            return self._banner_of_differences
        poor = [index + 1 for index in range(self.n_maps) if self.poor(index)]
        if not poor:
            return ""
        if len(poor) == 1:
            which = f"map {poor[0]} of {self.n_maps} should not be presented as a network"
        elif len(poor) == self.n_maps:
            which = f"none of the {self.n_maps} maps should be presented as a network"
        else:
            listed = f"{', '.join(map(str, poor[:-1]))} and {poor[-1]}"
            which = f"maps {listed} of {self.n_maps} should not be presented as networks"
        why = "the pattern may be noise" if self.noisy else "too weak compared with others to be found"
        return f"Not reliable: {which} ({why})."

    @property
    def _banner_of_differences(self) -> str:
        n_poor = self.n_maps - (self.n_reliable or 0) if self.noisy else 0
        which = "no map" if n_poor == self.n_maps else f"only {self.n_maps - n_poor} of {self.n_maps} maps"
        verb = "differs" if n_poor >= self.n_maps - 1 else "differ"
        if not n_poor:
            return ""
        return f"{which[0].upper()}{which[1:]} {verb} reliably from the template: read the others as its own."

    @property
    def headline(self) -> str:
        """Short description of the result: maps are called networks if all are, or may be, reliable."""
        if self.networks:
            return counted(self.n_maps, "network")
        reliable = {0: "none", 1: "one"}.get(self.n_reliable or 0, str(self.n_reliable))
        return f"{counted(self.n_maps, 'map')}, {reliable} of them reliable,"

    @property
    def prediction(self) -> str:
        """Predicted agreement with another run; empty if no noise was added or nothing is known."""
        if not self.noisy or self.stability is None:
            return ""
        grades, worst = [grade(float(value)) for value in self.stability], int(np.argmin(self.stability))
        counts = [f"{grades.count(name)} {name}" for name in (*GRADES, "poor") if name in grades]
        what = "their differences from the template" if self.of_difference else "these maps"
        known = [value for index, value in enumerate(self.stability) if not self._not_recoverable(index)]
        if not known:
            return f"Reliability: {', '.join(counts)}. {_NOT_PREDICTED}"
        if len(known) < self.n_maps:
            # A stability of 0 marks these maps: it is no prediction.
            return (
                f"Reliability: {', '.join(counts)}. The predicted correlation of the recoverable maps with "
                f"those of another run with fresh noise is {rounded(float(np.mean(known)))}. {_NOT_PREDICTED}"
            )
        return (
            f"Reliability: {', '.join(counts)}. The predicted correlation of {what} with those of another "
            f"run with fresh noise is {rounded(float(self.stability.mean()))} (worst: map {worst + 1}, "
            f"{rounded(float(self.stability[worst]))})."
        )

    def _not_recoverable(self, index: int) -> bool:
        return self.stability is not None and not self.of_difference and not self.stability[index]

    def mark(self, index: int) -> str:
        """Return a short label for one map; empty if nothing is known."""
        if self.stability is None or not (self.noisy or self.poor(index)):
            return ""
        value = float(self.stability[index])
        if self._not_recoverable(index):
            return f"not recoverable, {grade(value)}"
        what = "difference from the template: " if self.of_difference else ""
        return f"{what}stability {rounded(value)}, {grade(value)}"


_NOT_PREDICTED: Final = "Nothing is predicted of maps that are not recoverable."
_UNKNOWN: Final = (
    "The reliability of these maps is unknown: this method cannot determine how the noise has changed them."
)
