"""The budget policy of a site, and the comparison that enforces it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capedjica.errors import BudgetExceededError
from capedjica.privacy.charges import Cap, epsilon_of, total


@dataclass(frozen=True, slots=True)
class Policy:
    """The caps of a site, independent of what studies request.

    Parameters
    ----------
    total : Cap
        For all studies in total, over the lifetime of the ledger.
    per_study : Cap
        For any single study; a study may be approved for less.
    allow_non_private : bool
        Whether releases without privacy (infinite charge) are allowed. They are not compared with the caps,
        which still hold for the private releases; the totals show infinity.
    """

    total: Cap
    per_study: Cap
    allow_non_private: bool = False

    def check(self, asked: float, spent: Sequence[float], cap: Cap, whose: str) -> None:
        """Refuse the charge ``asked`` on top of ``spent`` if the exact sum exceeds the cap."""
        if asked == math.inf:
            if not self.allow_non_private:
                raise BudgetExceededError(
                    "this site does not allow a release without privacy; nothing was sent"
                )
            return
        counted = [c for c in spent if c < math.inf] if self.allow_non_private else spent
        # fsum rounds the exact sum once, so the sign of its result is the sign of the exact difference.
        # defence: cap-of-the-ledger
        if total([*counted, asked, -cap.mu2]) > 0:
            raise BudgetExceededError(_refusal(asked, total(counted), cap, whose))


def _refusal(asked: float, spent: float, cap: Cap, whose: str) -> str:
    ask, before, after = (epsilon_of(mu2, cap.delta) for mu2 in (asked, spent, asked + spent))
    return (
        f"{whose} allows {cap} and has spent {before:.6g}; "
        f"this release asks for {ask:.6g}, for a total of {after:.6g}; nothing was charged or sent"
    )
