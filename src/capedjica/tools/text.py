"""Words of others, made safe to show."""

from __future__ import annotations

from typing import Final

# Words of others are quoted up to this length.
_LONGEST: Final = 200


def printable(text: str, *, exactly: bool = False) -> str:
    """Return others' words as a terminal may show them: on one line, and nothing that it would obey.

    They are cut to what a person reads. ``exactly`` is for names by which something is to be found: all of it
    stays, and what does not print is escaped.
    """
    if exactly:
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST])
    return shown + "..." * (len(text) > _LONGEST)
