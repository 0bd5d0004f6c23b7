"""Numbers that pages quote from figures: ``quotes.toml`` says where, and they are filled in from the tables.

A quote is a piece of a page with ``{}`` in place of each number. Each number is the mean of one column over
the rows of the figure's table that have given values in other columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.evidence.catalogue import FIGURES
from benchmarks.evidence.code import ROOT

QUOTES: Final = Path(__file__).with_name("quotes.toml")
_NUMBER: Final = r"([-+]?\d[\d.,]*\d|\d)"


class Quote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers in one place of one page.

    Attributes
    ----------
    page : str
        Path relative to the project.
    says : str
        The text around the numbers, each of which is ``{}``; any white space matches any other.
    figure, column : str
        Where the numbers come from.
    rows : list of dict
        For each number, what the rows have in which columns; also ``column`` and ``shown`` of it alone.
    common : dict
        What the rows of all of them have.
    shown : str
        How a number is written.
    """

    page: str
    says: str
    figure: str
    column: str
    rows: list[dict[str, str]]
    common: dict[str, str] = {}
    shown: str = ".3f"

    def numbers(self) -> list[str]:
        """Return the numbers, from the figure's table."""
        table = _table(FIGURES[self.figure].base.with_suffix(".csv"))
        return [self._number(table, {**self.common, **own}) for own in self.rows]

    def _number(self, table: Sequence[Mapping[str, str]], wanted: Mapping[str, str]) -> str:
        wanted = {"column": self.column, "shown": self.shown, **wanted}
        column, shown = wanted.pop("column"), wanted.pop("shown")
        found = [float(row[column]) for row in table if wanted.items() <= row.items()]
        if not found:
            raise LookupError(f"{self.figure} has no row with {wanted}, quoted in {self.page}: {self.says}")
        return format(fmean(found), shown)

    def filled(self, text: str) -> str:
        """Return a page with the numbers of this quote as they are in the figure."""
        parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in self.says.split("{}")]
        places = list(re.finditer(_NUMBER.join(parts), text))
        if len(places) != 1 or len(parts) != len(self.rows) + 1:
            raise LookupError(f"{self.page} says {len(places)} times, not once: {self.says}")
        for group, number in reversed(list(enumerate(self.numbers(), start=1))):
            start, end = places[0].span(group)
            text = text[:start] + number + text[end:]
        return text


@cache
def _table(path: Path) -> tuple[dict[str, str], ...]:
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def read_quotes(path: Path = QUOTES) -> list[Quote]:
    """Read all quotes."""
    return msgspec.convert(msgspec.toml.decode(path.read_bytes()).get("quote", []), list[Quote])


def fill_pages() -> list[str]:
    """Write the numbers of all quotes into their pages; return the pages that changed."""
    changed = []
    for page in dict.fromkeys(quote.page for quote in read_quotes()):
        path = ROOT / page
        before = after = path.read_text(encoding="utf-8")
        for quote in read_quotes():
            after = quote.filled(after) if quote.page == page else after
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed
