r"""Two simulated groups with a known difference: some networks vary more in one group than in the other.

The time course of network r of participant m, with standard deviation 1, is multiplied by

.. math:: \exp( \tfrac{1}{2} \Delta\, d_r\, g_m + 0.2\, a_r\, (\text{age}_m - 45) / 25 + 0.2\, e_{mr} ),

with g = 1 for patients and -1 for controls, d = (1, -1, 0, 0, ...), a = (0, 0, 1, 0, ...) and e standard
normal. The log standard deviations of the first two networks therefore differ by :math:`\Delta` and
:math:`-\Delta` between the groups, and those of the other networks do not differ. Because the differences add
up to 0, the same holds relative to a participant's mean. Patients are five years older on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.participant_table import PARTICIPANT
from capedjica.tools.arrays import FloatArray

LEVELS: Final = ("control", "patient")
AGES: Final = (18.0, 80.0)
_SPREAD: Final = 0.2
_AGE_EFFECT: Final = 0.2


@dataclass(frozen=True, eq=False)
class SimulatedGroups:
    """Group membership and ages of simulated participants.

    Attributes
    ----------
    patients : array of bool, shape (n_people,)
        Whether each participant is a patient.
    ages : array, shape (n_people,)
        Ages in years, rounded to a tenth.
    gains : array, shape (n_people, R)
        Factors by which the time courses are multiplied.
    difference : array, shape (R,)
        True difference of log standard deviations, patients minus controls.
    """

    patients: NDArray[np.bool_]
    ages: FloatArray
    gains: FloatArray
    difference: FloatArray

    @classmethod
    def draw(cls, n_people: int, n_components: int, difference: float, seed: int) -> SimulatedGroups:
        """Draw groups, ages and gains, independently of other random numbers from the same seed."""
        rng = np.random.default_rng([seed, n_people])
        patients = rng.random(n_people) < 0.5
        ages = np.clip(rng.normal(np.where(patients, 47.5, 42.5), 12.0), *AGES).round(1)
        effects = np.zeros(n_components)
        effects[:2] = difference, -difference
        of_age = np.zeros(n_components)
        of_age[2:3] = _AGE_EFFECT
        signs = np.where(patients, 1.0, -1.0)
        logarithms = np.outer(signs, effects / 2) + np.outer((ages - 45) / 25, of_age)
        logarithms += _SPREAD * rng.standard_normal(logarithms.shape)
        return cls(patients, ages, np.exp(logarithms), effects)

    def write_participants(self, folder: Path, names: Sequence[str], first: int) -> None:
        """Write the table of some participants, the first of whom has the overall index ``first``."""
        lines = [f"{PARTICIPANT}\tgroup\tage"]
        for number, name in enumerate(names, start=first):
            lines.append(f"{name}\t{LEVELS[int(self.patients[number])]}\t{self.ages[number]:.1f}")
        (folder / "participants.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def write_truth(self, folder: Path) -> None:
        """Write the true differences, by component of the mixing matrix."""
        rows = [f"{number}\t{value:g}" for number, value in enumerate(self.difference, start=1)]
        text = "\n".join(["component\tdifference", *rows]) + "\n"
        (folder / "group_differences.tsv").write_text(text, encoding="utf-8")
