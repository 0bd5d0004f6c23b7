"""What a page begins with: three sentences for readers who know neither statistics nor brain imaging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capedjica.tools.text import counted

if TYPE_CHECKING:
    from capedjica.report.group import Findings

_NETWORKS: Final = (
    "Parts of the brain that become active and quiet together are called a network, and this page shows maps "
    "of where such parts may be."
)
_TABLES: Final = "This page shows numbers that were computed from the data of many people together."
_PICTURES: Final = {
    "good": "If everything were done again, the pictures would look nearly the same.",
    "fair": "If everything were done again, the pictures would look similar, but not the same.",
    "poor": "Some of the pictures, shown faded, may be nothing but chance: do not rely on those.",
    "none": "All of the pictures may be nothing but chance: do not rely on them.",
    "unknown": "Random numbers were added to protect people; how far they changed the pictures is not known.",
}


def in_short(findings: Findings) -> tuple[str, str, str]:
    """Return three sentences: what is shown, whose data it comes from, and how far to trust it."""
    what = _TABLES if findings.maps is None else _NETWORKS
    return what, _whose(findings), _trust(findings)


def _whose(findings: Findings) -> str:
    people = findings.contract.participants
    who = counted(sum(people.values()), "participant")
    sites = "the site" if len(people) == 1 else f"their {len(people)} sites"
    return findings.where.plain.format(who=who, sites=sites, groups=counted(len(people), "group"))


def _trust(findings: Findings) -> str:
    if not findings.private:
        return "Nobody's privacy is protected by this result: it needs as much care as the data themselves."
    if findings.maps is None:
        return "Random numbers were added, so that little can be learned about any one person."
    grades = findings.maps.reliability.grades
    if grades is None:
        return _PICTURES["unknown"]
    if "poor" in grades:
        return _PICTURES["none" if set(grades) == {"poor"} else "poor"]
    return _PICTURES["fair" if "fair" in grades else "good"]
