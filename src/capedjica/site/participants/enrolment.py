"""Enrolment of a site: the list of participants, fixed before a study is approved and kept at the site.

Only their number is public. The exclusions and their reasons depend on the scans, so they must not influence
anything once a study runs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.errors import InputError
from capedjica.site.home import DataTable, SiteHome
from capedjica.tools.atomic_files import write_private
from capedjica.tools.toml import read_toml, toml_value

SCHEMA: Final = 1
_HEADER: Final = """\
# Participants of this site in studies, fixed by `capedjica site enrol`. This file stays at the site; only the
# number enrolled is public. A participant whose scan is removed later stays enrolled and counts as zero.
"""


class LeftOut(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An excluded participant and the reasons."""

    name: str
    reasons: tuple[str, ...]


class Enrolment(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of an ``enrolled.toml``.

    Attributes
    ----------
    when : str
        Time of the enrolment.
    study : str, optional
        Title of the study whose requirements the scans were checked against.
    data : DataTable
        The data that were checked.
    enrolled : tuple of str
        Names of the enrolled participants, in order.
    left_out : tuple of LeftOut
        The excluded participants.
    """

    schema: int = SCHEMA
    when: str
    study: str | None = None
    data: DataTable
    enrolled: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def now(
        cls, data: DataTable, enrolled: list[str], left_out: list[LeftOut], study: str | None
    ) -> Enrolment:
        """Return an enrolment with the current time."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(when=when, study=study, data=data, enrolled=tuple(enrolled), left_out=tuple(left_out))


def enrolment_path(home: SiteHome) -> Path:
    """Return the path of a site's enrolment."""
    return home.folder / "enrolled.toml"


def read_enrolment(home: SiteHome) -> Enrolment | None:
    """Return the enrolment of a site, or None if there is none and every participant found takes part."""
    file = enrolment_path(home)
    if not file.exists():
        return None
    enrolment = read_toml(file, Enrolment, SCHEMA)
    if not enrolment.enrolled or len(set(enrolment.enrolled)) < len(enrolment.enrolled):
        raise InputError(
            f"{file}: enrolled must list at least one participant, and each only once; to repair it: "
            "capedjica site enrol --again"
        )
    return enrolment


def write_enrolment(home: SiteHome, enrolment: Enrolment) -> None:
    """Write the enrolment atomically, readable only by its owner."""
    file = enrolment_path(home)
    try:
        content = _toml(enrolment).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{file} cannot be written: some names of scans are not valid UTF-8; rename these scans"
        ) from None
    write_private(file, content)


def _toml(enrolment: Enrolment) -> str:
    lines = [_HEADER, f"schema = {enrolment.schema}", f"when = {toml_value(enrolment.when)}"]
    if enrolment.study is not None:
        lines += [
            "# Study whose requirements the scans were checked against.",
            f"study = {toml_value(enrolment.study)}",
        ]
    lines += ["", f"# {len(enrolment.enrolled)} participants.", *_list("enrolled", enrolment.enrolled)]
    lines += ["", "# Data that were checked.", "[data]"]
    lines += [
        f"{key} = {toml_value(value)}" for key, value in msgspec.to_builtins(enrolment.data).items() if value
    ]
    for one in enrolment.left_out:
        lines += ["", "[[left_out]]", f"name = {toml_value(one.name)}", *_list("reasons", one.reasons)]
    return "\n".join(lines) + "\n"


def _list(key: str, values: tuple[str, ...]) -> list[str]:
    return [f"{key} = [", *(f"    {toml_value(value)}," for value in values), "]"]
