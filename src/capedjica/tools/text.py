"""Text helpers: sanitised output of untrusted text, and counts with a plural."""

from __future__ import annotations

from typing import Final

# Untrusted text is quoted up to this length.
_LONGEST: Final = 200


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a count with its noun: "1 release", "1,200 releases"; an irregular plural is given."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def printable(text: str, *, exactly: bool = False) -> str:
    """Return untrusted text that is safe to print: on one line, without control characters.

    Long text is truncated. With ``exactly``, for names that must identify something, the whole text is kept
    and unprintable characters are escaped.
    """
    if exactly:
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST])
    return shown + "..." * (len(text) > _LONGEST)
