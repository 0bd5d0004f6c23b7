"""Statements about where the participants' data were during a run, for the report and the terminal.

Only if each site had its own machine can a report state that no data left a site. If sites are folders on one
machine, or parts of an array, the same protocol ran and the same noise was added, but the operator of that
machine had access to the data of all participants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from capedjica.tools.text import counted


@dataclass(frozen=True)
class Whereabouts:
    """Statements for one kind of separation between the sites.

    Attributes
    ----------
    short : str
        Clause that follows the number of participants and sites.
    plain : str
        Sentence for lay readers, with ``{who}``, ``{sites}`` and ``{count}``.
    told : str
        Sentences for expert readers; the last ends with "participants", so that the noise can be added.
    article : str
        Part of a sentence for the methods section of an article.
    sites_were : str
        Sentence for the same section on what a site was; empty if sites were real sites.
    accounts : str
        Who recorded the budget spent.
    enrolled : str
        Sentence that states what is known about the number of participants.
    """

    short: str
    plain: str
    told: str
    article: str
    sites_were: str
    accounts: str
    enrolled: str


_FIXED: Final = "The number of participants enrolled at a site was fixed before the study was approved."
AT_SITES: Final = Whereabouts(
    short="no participant's data left their site",
    plain="The data of {who} stayed at {sites}, and only sums over many participants were sent.",
    told="The data of each participant were only ever read at their own site. Each site sent sums over its "
    "participants",
    article="without any participant's data leaving their site",
    sites_were="",
    accounts="according to the site's own ledger",
    enrolled=f"{_FIXED} The number with usable data is known to the site only.",
)
ON_ONE_MACHINE: Final = Whereabouts(
    short="all sites were folders on one machine",
    plain="The data of {who}, from {count}, were all on one computer.",
    told="All sites were folders on one machine, each with its own key, limits and ledger. Each site sent "
    "sums over its participants",
    article="on one machine that held the data of all participants",
    sites_were="Sites were folders, between which the protocol ran as it does between machines.",
    accounts="according to the site's own ledger",
    enrolled=f"{_FIXED} The number with usable data is recorded in the site's own folder only.",
)
IN_ONE_PROCESS: Final = Whereabouts(
    short="all in one process",
    plain=ON_ONE_MACHINE.plain,
    told="The data of all sites were in one process and were not kept separate: the sites were parts of its "
    "input. Each part sent sums over its participants",
    article="in one process that held the data of all participants",
    sites_were="Sites were parts of the data, between which the protocol ran as it does between machines.",
    accounts="as added up by this process",
    enrolled="",
)


def whereabouts_of(carriers: Mapping[str, str]) -> Whereabouts:
    """Return the statements for a run, given how each site's carrier was confined (``privacy.json``)."""
    return ON_ONE_MACHINE if "embedded" in carriers.values() else AT_SITES


def who(participants: Mapping[str, int], absent: Collection[str] = ()) -> str:
    """Return the participants in a result and their sites: "48 participants at 3 of 4 sites"."""
    there = [people for name, people in participants.items() if name not in absent]
    missing = len(there) < len(participants)
    sites = f"{len(there)} of " * missing + counted(len(participants), "site")
    return f"{counted(sum(there), 'participant')} at {sites}"
