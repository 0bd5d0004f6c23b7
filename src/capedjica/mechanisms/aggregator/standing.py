r"""What the aggregator remembers of its sites, so that one that lies about blocks or spending is found out.

A site says in every greeting which block it claimed last and which part of its budget is spent. Both follow
from what it was asked, so the aggregator writes down what it asks, always before it asks it. Whatever is lost
on the way, an honest site can then never have claimed or spent more than is written, and one that says more
contradicts the record. Saying less harms nobody but the site itself.

A record can be wrong too: a run that begins in a new folder knows nothing of blocks and releases of an
earlier one. Of S sites at most S_C lie, and the threshold t has 2t > S + S_C, so if t sites agree with the
record, more than half of the honest ones do,

.. math:: t - S_C > (S - S_C) / 2 ,

and the others lie. If more sites contradict it than may lie, the record lacks something. If neither is so,
too few sites are there to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from capedjica.mechanisms.aggregator.lost_sites import LEFT_OUT_AFTER, far_ahead
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import CarrierName, Status

# Every release costs less than its part of the budget, by the headroom of its plan; what remains is that sums
# of many parts are rounded, here and at the site.
_RELATIVE: Final = 1e-9
_ABSOLUTE: Final = 1e-12


def _keep_in_memory(standing: Standing) -> None:
    """Save nothing."""


@dataclass
class Standing:
    """What is known of the sites of one run.

    Attributes
    ----------
    block : int
        The highest block ever begun, -1 for none.
    asked : dict
        The part of its budget that each site was ever asked to spend, on releases given up too.
    failures : Counter
        How often each site failed the others.
    reasons : dict
        Why a site failed or lied, the last time.
    liars : set of str
        The sites whose own words were false; they are left out for good.
    carriers : dict
        What each site says that keeps the program with the network from its files.
    save : callable
        Called with this object whenever it changed, and before anything is asked that depends on it.
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
        """Whether a site lied, or failed the others too often."""
        return self.failures[name] >= LEFT_OUT_AFTER

    def begin(self, block: int) -> None:
        """Write down a block that is about to be begun."""
        if block > self.block:
            self.block = block
            self.save(self)

    def ask(self, participants: Collection[str], fraction: float) -> None:
        """Write down a release that is about to be asked for, and the part of each budget that it may use."""
        for name in participants:
            self.asked[name] = self.asked.get(name, 0.0) + fraction
        self.save(self)

    def note_carriers(self, present: Mapping[str, Status]) -> None:
        """Write down how sites keep the network from their files; once a site had no boundary, that stays."""
        said = {name: status.carrier for name, status in present.items() if self.carriers.get(name) != "none"}
        if not said.items() <= self.carriers.items():
            self.carriers |= said
            self.save(self)

    def fail(self, reasons: Mapping[str, str]) -> None:
        """Write down which sites failed the others, and why."""
        if reasons:
            self.failures.update(reasons.keys())
            self.reasons.update(reasons)
            self.save(self)

    def judge(self, contract: Contract, present: Mapping[str, Status]) -> dict[str, str]:
        """Return whom to leave out of those that answered a greeting, and why.

        Liars are left out for good. Where the record turns out to lack something, the sites are believed and
        the record is raised to what they say. Where that cannot be told, those that contradict the record
        are left out until more sites are there.
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
        """Return in words what a site says against the record; "" for nothing."""
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
        """Leave sites out for good."""
        if lies:
            self.liars.update(lies)
            self.failures.update({name: max(0, LEFT_OUT_AFTER - self.failures[name]) for name in lies})
            self.reasons.update(lies)
            self.save(self)

    def _believe(self, contract: Contract, present: Mapping[str, Status]) -> dict[str, str]:
        """Raise the record to what sites say; return whose block is too far ahead for the others to follow.

        A site that is away spent about what the others did, so what the most was is allowed to all.
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
    """Return in words why no honest site says this; "" if one may."""
    if status.spent > 1 + _RELATIVE:
        return f"it says that it spent {status.spent:.6g} of its budget, more than its ledger allows"
    return ""


def _may_lie(contract: Contract) -> int:
    """Return how many of the sites that are asked may lie: S_C, and never half of them or more."""
    n_asked = 1 if contract.mechanism == "local" else len(contract.roster.names)
    return min(contract.roster.n_colluding, (n_asked - 1) // 2)
