"""Tables, headings and paragraphs for a terminal; numbers are never truncated."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text


def show_heading(text: str, console: Console) -> None:
    """Print a heading after an empty line."""
    console.print()
    console.print(Text(text, style="bold"))


def show_paragraph(text: str, console: Console, style: str = "") -> None:
    """Print an indented paragraph, wrapped between words at the terminal's width, without markup."""
    lines = textwrap.fill(
        text,
        console.width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text(lines, style=style), soft_wrap=True)


def show_table(
    columns: list[str], rows: list[list[str]], console: Console, strong: int | None = None
) -> None:
    """Print a table; the row ``strong`` is printed in bold.

    If the terminal is too narrow, the first column is printed on separate lines; nothing is truncated.
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    narrow = 2 * len(widths) + sum(widths) > console.width
    for index, cells in enumerate([columns, *rows], start=-1):
        style = "dim" if index == -1 else "bold" if index == strong else ""
        first, numbers = cells[0].ljust(widths[0]), list(map(str.rjust, cells[1:], widths[1:]))
        lines = [first.rstrip(), "  " + "  ".join(numbers)] if narrow else ["  ".join([first, *numbers])]
        for line in lines:
            console.print(Text(f"  {line}", style=style), soft_wrap=True)
