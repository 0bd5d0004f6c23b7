r"""The aggregator's record of its sites, used to detect sites that misreport their blocks or spending.

In every greeting a site reports the last block it claimed and the fraction of its budget that is spent. Both
follow from the requests it received, so the aggregator records every request before it sends it. Even if
messages are lost, an honest site can then never have claimed or spent more than is recorded, and a site that
reports more contradicts the record. Reporting less harms only the site itself.

The record can be incomplete: a run started in a new folder has no record of the blocks and releases of an
earlier run. Of S sites at most S_C are dishonest, and the threshold t satisfies 2t > S + S_C, so if t sites
agree with the record, more than half of the honest ones do,

.. math:: t - S_C > (S - S_C) / 2 ,

and the others are dishonest. If more sites contradict the record than may be dishonest, the record is
incomplete. Otherwise too few sites are present to decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from capedjica.mechanisms.aggregator.lost_sites import LEFT_OUT_AFTER, far_ahead
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import CarrierName, Status

# Every release costs less than its share of the budget, by the headroom of its plan. These tolerances cover
# rounding in sums of many shares, here and at the site.
_RELATIVE: Final = 1e-9
_ABSOLUTE: Final = 1e-12


def _keep_in_memory(standing: Standing) -> None:
    """Do not save the record."""


@dataclass
class Standing:
    """The record of the sites of one run.

    Attributes
    ----------
    block : int
        The highest block ever started, -1 for none.
    asked : dict
        The fraction of its budget that each site was asked to spend in total, including aborted releases.
    failures : Counter
        Number of failures of each site.
    reasons : dict
        The most recent reason why a site failed or was found dishonest.
    liars : set of str
        The dishonest sites, which are permanently excluded.
    carriers : dict
        How each site reports that its carrier is confined.
    save : callable
        Called with this object after every change, before any request that depends on it.
    """

    block: int = -1
    asked: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    liars: set[str] = field(default_factory=set)
    carriers: dict[str, CarrierName] = field(default_factory=dict)
    save: Callable[[Standing], None] = field(default=_keep_in_memory, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.failures.update({name: LEFT_OUT_AFTER - self.failures[name] for name in self.liars})

    def leaves_out(self, name: str) -> bool:
        """Return whether a site is excluded because it was dishonest or failed too often."""
        return self.failures[name] >= LEFT_OUT_AFTER

    def begin(self, block: int) -> None:
        """Record a block that is about to be started."""
        if block > self.block:
            self.block = block
            self.save(self)

    def ask(self, participants: Collection[str], fraction: float) -> None:
        """Record a release that is about to be requested, and the fraction of each budget it may use."""
        for name in participants:
            self.asked[name] = self.asked.get(name, 0.0) + fraction
        self.save(self)

    def note_carriers(self, present: Mapping[str, Status]) -> None:
        """Record how each site confines its carrier; a site once unconfined stays recorded as such."""
        said = {name: status.carrier for name, status in present.items() if self.carriers.get(name) != "none"}
        if not said.items() <= self.carriers.items():
            self.carriers |= said
            self.save(self)

    def fail(self, reasons: Mapping[str, str]) -> None:
        """Record which sites failed, and why."""
        if reasons:
            self.failures.update(reasons.keys())
            self.reasons.update(reasons)
            self.save(self)

    def judge(self, contract: Contract, present: Mapping[str, Status]) -> dict[str, str]:
        """Return the sites to exclude among those that answered a greeting, with the reasons.

        Dishonest sites are permanently excluded. If the record is found to be incomplete, it is raised to
        what the sites report. If this cannot be determined, the sites that contradict the record are
        excluded until more sites are present.
        """
        impossible = {name: _impossible(status) for name, status in present.items() if _impossible(status)}
        self._convict(impossible)
        possible = {name: status for name, status in present.items() if name not in impossible}
        doubts = {name: words for name, one in possible.items() if (words := self._contradiction(name, one))}
        if len(possible) - len(doubts) >= contract.roster.threshold:
            self._convict(doubts)
        # defence: a-record-that-was-lost
        elif len(doubts) > _may_lie(contract):
            doubts = self._believe(contract, possible)
        return impossible | doubts

    def _contradiction(self, name: str, status: Status) -> str:
        """Return how a site's report contradicts the record, or "" if it does not."""
        asked = self.asked.get(name, 0.0)
        # defence: false-spending
        if status.spent > asked * (1 + _RELATIVE) + _ABSOLUTE:
            return (
                f"it says that it spent {status.spent:.6g} of its budget; this run asked it for {asked:.6g}"
            )
        # defence: false-blocks
        if status.block > self.block:
            return f"it says that it claimed block {status.block}; this run never went beyond {self.block}"
        return ""

    def _convict(self, lies: Mapping[str, str]) -> None:
        """Permanently exclude dishonest sites."""
        if lies:
            self.liars.update(lies)
            self.failures.update({name: max(0, LEFT_OUT_AFTER - self.failures[name]) for name in lies})
            self.reasons.update(lies)
            self.save(self)

    def _believe(self, contract: Contract, present: Mapping[str, Status]) -> dict[str, str]:
        """Raise the record to the sites' reports; return the sites whose block is too far ahead.

        An absent site has spent about as much as the others, so the largest reported value is allowed to all.
        """
        # defence: blocks-far-ahead-aggregator
        runaways = far_ahead(present)
        believed = [status for name, status in present.items() if name not in runaways]
        self.block = max(self.block, *(status.block for status in believed))
        most = max(status.spent for status in believed)
        self.asked |= {name: max(self.asked.get(name, 0.0), most) for name in contract.roster.names}
        self.save(self)
        reasons = dict.fromkeys(runaways, "it says that it claimed a block far ahead of the others'")
        self.fail(reasons)
        return reasons


def _impossible(status: Status) -> str:
    """Return why no honest site can report this status, or "" if one can."""
    if status.spent > 1 + _RELATIVE:
        return f"it says that it spent {status.spent:.6g} of its budget, more than its ledger allows"
    return ""


def _may_lie(contract: Contract) -> int:
    """Return how many of the sites asked may be dishonest: S_C, but always less than half of them."""
    n_asked = 1 if contract.mechanism == "local" else len(contract.roster.names)
    return min(contract.roster.n_colluding, (n_asked - 1) // 2)
