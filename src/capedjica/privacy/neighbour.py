r"""The unit of privacy: all data of a subject or a single time point, and conversion between the two.

Two inputs are neighbours if one *unit* is replaced: all data of a subject (``"subject"``), or one time point
of a subject (``"sample"``). The unit is as much a part of a guarantee as epsilon is.

**From a time point to its subject.** A subject holds at most k units. Replacing the subject replaces up to k
units one after the other, and each shifts the mean of the adversary's view by at most mu standard deviations.
By the triangle inequality they shift it by at most k mu in total, and the covariance does not change, so for
a whole subject the view is k mu-GDP. (Any mu-GDP procedure is k mu-GDP for k units: Dong, Roth and Su 2022,
Theorem 2.14.) Releases compose as before, since :math:`\sum_i (k \mu_i)^2 = (k \mu)^2`. The grid's
contribution to delta, equation (4) of :mod:`capedjica.securesum.discrete_gaussian`, grows by a factor of at
most k, so k times as much of delta is reserved. An epsilon above 10 is, as always, stated for ideal random
numbers (:mod:`capedjica.privacy.reserved_delta`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.privacy.reserved_delta import RESERVED_DELTA

Neighbour = Literal["subject", "sample"]
NEIGHBOURS: Final[tuple[str, ...]] = get_args(Neighbour)


@dataclass(frozen=True)
class ProtectedUnit:
    """The unit that neighbouring inputs differ in, and the number of units that one subject may hold.

    Parameters
    ----------
    neighbour : {"subject", "sample"}
        All data of a subject, or a single time point.
    per_subject : int
        k, the largest number of units of one subject: 1, or the number of time points of the longest subject,
        which is public.
    """

    neighbour: Neighbour = "subject"
    per_subject: int = 1

    def __post_init__(self) -> None:
        if self.neighbour not in NEIGHBOURS:
            raise InputError(f"neighbour must be 'subject' or 'sample', got {self.neighbour!r}")
        validate.count("units_per_subject", self.per_subject)
        if self.is_subject and self.per_subject != 1:
            raise InputError(f"units_per_subject must be 1 if neighbour is 'subject', got {self.per_subject}")

    @property
    def is_subject(self) -> bool:
        """Whether the unit is a subject with all their data."""
        return self.neighbour == "subject"

    def named(self) -> str:
        """Return the name of the unit, to follow "each"."""
        return "participant (all of their data)" if self.is_subject else "single time point"

    def plural(self) -> str:
        """Return the name of the unit in the plural."""
        return "participants" if self.is_subject else "time points"

    def holding(self) -> str:
        """Return a description of one participant with all units, where the unit is a time point."""
        return f"a participant with up to {self.per_subject:,} time points"

    def subject_mu(self, mu: float) -> float:
        """Return k mu, the mu of a whole subject if one unit has ``mu``."""
        return self.per_subject * mu

    def subject_epsilon(self, mu: float, delta: float) -> float:
        """Return an upper bound on the epsilon of a whole subject at ``delta`` if one unit has ``mu``."""
        left = 1 - self.per_subject * RESERVED_DELTA
        return gaussian_epsilon(self.subject_mu(mu), delta * left) if left > 0 else math.inf


WHOLE_SUBJECT: Final = ProtectedUnit()
