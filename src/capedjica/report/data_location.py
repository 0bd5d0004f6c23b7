"""Where everybody's data were while a study ran, in words: the same in the report and in the terminal.

Only where each site had a machine of its own can it be said that no data left a site. Where sites are folders
of one machine, or parts of an array, the same protocol ran and the same noise was added, but whoever had the
machine had everybody's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Whereabouts:
    """One of the ways in which sites are apart.

    Attributes
    ----------
    short : str
        What follows the number of people and sites.
    plain : str
        A sentence for readers without a background, with ``{who}``, ``{sites}`` and ``{groups}``.
    told : str
        The same for those who want to know more, up to what the sums were.
    article : str
        For the methods of an article, as part of a sentence.
    sites_were : str
        A sentence of the same that says what a site was; empty where it was one.
    accounts : str
        Who added up what was spent.
    enrolled : str
        What is known of how many people took part.
    """

    short: str
    plain: str
    told: str
    article: str
    sites_were: str
    accounts: str
    enrolled: str


_FIXED: Final = "How many people a site enrolled was fixed before the study was approved."
AT_SITES: Final = Whereabouts(
    short="nobody's data left their site",
    plain="The data of {who} stayed at {sites}, and only sums over many people were sent.",
    told="Everybody's data were only ever read at their own site. What left a site were sums over its people",
    article="without anybody's data leaving their site",
    sites_were="",
    accounts="by the site's own ledger",
    enrolled=f"{_FIXED} How many of them could be used is known to the site alone.",
)
ON_ONE_MACHINE: Final = Whereabouts(
    short="all sites were folders of one machine",
    plain="The data of {who}, in {groups}, were all on one computer.",
    told="All sites were folders of one machine, each with a key, limits and a ledger of its own. What one "
    "told the others were sums over its people",
    article="on one machine that held everybody's data",
    sites_were="Sites were folders, between which the protocol ran as it does between machines.",
    accounts="by the site's own ledger",
    enrolled=f"{_FIXED} How many of them could be used stands in the site's own folder alone.",
)
IN_ONE_PROCESS: Final = Whereabouts(
    short="all in one process",
    plain=ON_ONE_MACHINE.plain,
    told="The data of all sites were in one process, and were not kept apart: the sites are parts of what it "
    "was given. What one part told the others were sums over its people",
    article="in one process that held everybody's data",
    sites_were="Sites were parts of the data, between which the protocol ran as it does between machines.",
    accounts="as this process added it up",
    enrolled="",
)


def whereabouts_of(carriers: Mapping[str, str]) -> Whereabouts:
    """Return that of a run, by what kept the network from each site's files (``privacy.json``)."""
    return ON_ONE_MACHINE if "embedded" in carriers.values() else AT_SITES
