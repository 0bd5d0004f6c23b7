"""Lay summary at the top of a report: three sentences without statistics or brain imaging terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capedjica.tools.text import counted

if TYPE_CHECKING:
    from capedjica.report.group import Findings

_NETWORKS: Final = (
    "A network is a group of brain areas whose activity rises and falls together, and this page shows maps "
    "of where such networks may be."
)
_TABLES: Final = "This page shows numbers computed from the combined data of many participants."
_PICTURES: Final = {
    "good": "If the study were repeated on the same data, the pictures would look nearly the same.",
    "fair": "If the study were repeated on the same data, the pictures would look similar, but not the same.",
    "poor": "Some of the pictures, shown faded, may be due to chance alone: do not rely on those.",
    "none": "All of the pictures may be due to chance alone: do not rely on them.",
    "unknown": "Random numbers were added to protect the participants; how much they changed the pictures is "
    "not known.",
}


def in_short(findings: Findings) -> tuple[str, str, str]:
    """Return three sentences: what is shown, whose data it is based on, and how reliable it is."""
    what = _TABLES if findings.maps is None else _NETWORKS
    return what, _whose(findings), _trust(findings)


def _whose(findings: Findings) -> str:
    people = findings.participants
    who = counted(sum(people.values()), "participant")
    sites = "the site" if len(people) == 1 else f"their {len(people)} sites"
    return findings.where.plain.format(who=who, sites=sites, count=counted(len(people), "site"))


def _trust(findings: Findings) -> str:
    if not findings.private:
        return "This result does not protect anyone's privacy: handle it with as much care as the data."
    if findings.maps is None:
        return "Random numbers were added, so that little can be learned about any one participant."
    grades = findings.maps.reliability.grades
    if grades is None:
        return _PICTURES["unknown"]
    if "poor" in grades:
        return _PICTURES["none" if set(grades) == {"poor"} else "poor"]
    return _PICTURES["fair" if "fair" in grades else "good"]
