r"""What a guarantee protects: everything of a subject or a single time point, and what it is worth to both.

Two inputs are neighbours if one *unit* is replaced: all the data of a subject (``"subject"``), or one of the
time points of one (``"sample"``). The unit is as much a part of a guarantee as epsilon is.

**From a time point to its subject.** A subject holds at most k units. Replacing it replaces up to k of them,
one after the other, and each moves the mean of what the adversary sees by at most mu standard deviations. By
the triangle inequality all of them move it by at most k mu, and the covariance stays, so for a whole subject
the view is k mu-GDP. (Any mu-GDP procedure is k mu-GDP for k units: Dong, Roth and Su 2022, Theorem 2.14.)
Releases compose as before, since :math:`\sum_i (k \mu_i)^2 = (k \mu)^2`. What the grid adds to delta,
equation (4) of :mod:`capedjica.securesum.discrete_gaussian`, grows by a factor of at most k, so k times as
much of delta is set aside. Above an epsilon of 10 this is said, as every such epsilon is, of ideal random
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
    """What is replaced between neighbours, and how many of these one subject may hold.

    Parameters
    ----------
    neighbour : {"subject", "sample"}
        Everything of a subject, or a single time point.
    per_subject : int
        k, the most units of one subject: 1, or the length of the longest subject, which is public.
    """

    neighbour: Neighbour = "subject"
    per_subject: int = 1

    def __post_init__(self) -> None:
        if self.neighbour not in NEIGHBOURS:
            raise InputError(f"neighbour must be 'subject' or 'sample', got {self.neighbour!r}")
        validate.count("units_per_subject", self.per_subject)
        if self.is_subject and self.per_subject != 1:
            raise InputError(
                f"units_per_subject must be 1 where the neighbour is a subject, got {self.per_subject}"
            )

    @property
    def is_subject(self) -> bool:
        """Whether all the data of a subject are protected as one."""
        return self.neighbour == "subject"

    def named(self) -> str:
        """Return the unit in words, after "each"."""
        return "person (all their data)" if self.is_subject else "single time point"

    def plural(self) -> str:
        """Return what is counted, in words."""
        return "people" if self.is_subject else "time points"

    def holding(self) -> str:
        """Return the person with all their units, in words: "a whole person, up to 200 time points,"."""
        return f"a whole person, up to {self.per_subject:,} time points,"

    def subject_mu(self, mu: float) -> float:
        """Return k mu, the mu of a whole subject where that of one unit is ``mu``."""
        return self.per_subject * mu

    def subject_epsilon(self, mu: float, delta: float) -> float:
        """Return the epsilon of a whole subject at ``delta``, where one unit has ``mu``; an upper bound."""
        left = 1 - self.per_subject * RESERVED_DELTA
        return gaussian_epsilon(self.subject_mu(mu), delta * left) if left > 0 else math.inf


WHOLE_SUBJECT: Final = ProtectedUnit()
