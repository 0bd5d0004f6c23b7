"""The list of people that a site enrolled: fixed before a study is approved, and kept at the site.

Only how many they are is public. Who was left out, and why, was decided by looking at scans, so it may not
change anything once a study runs.
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
# The people of this site who take part in studies, fixed by `capedjica site enrol`. This file stays here; how
# many are enrolled is public. Somebody whose scan vanishes later stays enrolled and counts as zero.
"""


class LeftOut(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Somebody who is not enrolled, and why."""

    name: str
    reasons: tuple[str, ...]


class Enrolment(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of an ``enrolled.toml``.

    Attributes
    ----------
    when : str
        The time of the enrolment.
    study : str, optional
        Title of the study whose demands were made on the scans.
    data : DataTable
        What was looked at.
    enrolled : tuple of str
        Names, in order.
    left_out : tuple of LeftOut
        All others.
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
        """Return an enrolment of this moment."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(when=when, study=study, data=data, enrolled=tuple(enrolled), left_out=tuple(left_out))


def enrolment_path(home: SiteHome) -> Path:
    """Return where a site keeps its enrolment."""
    return home.folder / "enrolled.toml"


def read_enrolment(home: SiteHome) -> Enrolment | None:
    """Return who is enrolled; None where nobody was chosen, and all that are found take part."""
    file = enrolment_path(home)
    if not file.exists():
        return None
    enrolment = read_toml(file, Enrolment, SCHEMA)
    if not enrolment.enrolled or len(set(enrolment.enrolled)) < len(enrolment.enrolled):
        raise InputError(f"{file}: enrolled must name everybody once, and somebody")
    return enrolment


def write_enrolment(home: SiteHome, enrolment: Enrolment) -> None:
    """Write who is enrolled, whole or not at all; only its owner can read the file."""
    file = enrolment_path(home)
    try:
        content = _toml(enrolment).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{file} cannot be written: there are names of scans that are not text in UTF-8; rename them"
        ) from None
    write_private(file, content)


def _toml(enrolment: Enrolment) -> str:
    lines = [_HEADER, f"schema = {enrolment.schema}", f"when = {toml_value(enrolment.when)}"]
    if enrolment.study is not None:
        lines += [
            "# The study whose demands were made on the scans.",
            f"study = {toml_value(enrolment.study)}",
        ]
    lines += ["", f"# {len(enrolment.enrolled)} people.", *_list("enrolled", enrolment.enrolled)]
    lines += ["", "# What was looked at.", "[data]"]
    lines += [
        f"{key} = {toml_value(value)}" for key, value in msgspec.to_builtins(enrolment.data).items() if value
    ]
    for one in enrolment.left_out:
        lines += ["", "[[left_out]]", f"name = {toml_value(one.name)}", *_list("reasons", one.reasons)]
    return "\n".join(lines) + "\n"


def _list(key: str, values: tuple[str, ...]) -> list[str]:
    return [f"{key} = [", *(f"    {toml_value(value)}," for value in values), "]"]
