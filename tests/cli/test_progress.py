"""Progress bars say how many of how many, and the time left; on a terminal only."""

import io

import pytest
from rich.console import Console

from capedjica.cli.progress import counting, progress_bars


@pytest.mark.parametrize(
    ("bars", "fields"),
    [(lambda c: counting("reading scans", c), {}), (progress_bars, {"status": "at north"})],
)
def test_the_time_left_is_that_of_the_rest_at_the_speed_so_far(bars, fields):
    """Five of ten, one every five seconds: 25 seconds are left."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress, now = bars(console), [0.0]
    progress.get_time = lambda: now[0]
    task = progress.add_task("reading scans", total=10, **fields)
    for _ in range(5):
        progress.advance(task)
        now[0] += 5
    console.print(progress.get_renderable())
    shown = console.file.getvalue()
    assert "left" in shown
    assert "0:00:25" in shown
    assert next(iter(fields.values()), "5/10") in shown


@pytest.mark.parametrize("bars", [lambda c: counting("reading scans", c), progress_bars])
def test_nothing_is_shown_where_there_is_no_terminal(bars):
    console = Console(file=io.StringIO())
    with bars(console) as progress:
        progress.advance(progress.add_task("", total=2, status=""))
    assert console.file.getvalue() == ""
