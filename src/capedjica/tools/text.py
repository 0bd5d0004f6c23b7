"""Words of others, made safe to show; and numbers of things."""

from __future__ import annotations

from typing import Final

# Words of others are quoted up to this length.
_LONGEST: Final = 200


def counted(number: int, thing: str) -> str:
    """Return how many there are of a thing that is named in the singular: "1 release", "1,200 releases"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def printable(text: str, *, exactly: bool = False) -> str:
    """Return others' words as a terminal may show them: on one line, and nothing that it would obey.

    They are cut to what a person reads. ``exactly`` is for names by which something is to be found: all of it
    stays, and what does not print is escaped.
    """
    if exactly:
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST])
    return shown + "..." * (len(text) > _LONGEST)
