"""Progress bars, shown only on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def counting(words: str, console: Console) -> Progress:
    """Return a progress bar with what is counted, how many of how many, and the time left."""
    return _shown(console, TextColumn(words), BarColumn(24), MofNCompleteColumn())


def progress_bars(console: Console) -> Progress:
    """Return progress bars for tasks that state what they do: a description and a ``status``."""
    status = TextColumn("{task.fields[status]}")
    return _shown(console, SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), status)


def _shown(console: Console, *columns: ProgressColumn) -> Progress:
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    return Progress(*columns, *times, console=console, transient=True, disable=not console.is_interactive)
