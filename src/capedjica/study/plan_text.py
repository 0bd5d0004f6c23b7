"""A plan in words and tables, for the terminal."""

from __future__ import annotations

import decimal
import math
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from capedjica.study.planning import Plan

ACCOUNTANT_TITLES = {
    "exact": "exact (the guarantee)",
    "rdp": "Renyi, best order",
    "moments": "moments accountant",
    "strong": "strong composition",
    "naive": "naive composition",
}

PAPER_TITLES = {
    "rdp_corrected_output_only": "paper's RDP, sigma corrected",
    "rdp_as_printed": "paper's RDP as printed",
    "moments_as_printed": "paper's moments as printed",
    "theorem_2_total": "paper's Theorem 2",
}


def round_up(value: float | None, digits: int = 4) -> str:
    """Return a guarantee to ``digits`` significant digits, never below its value; a dash if there is none."""
    if value is None:
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(decimal.Decimal(value))):.{digits}g}"


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan; every number is one of ``plan.as_dict()``."""
    numbers = plan.as_dict()
    _show_setting(numbers, console)
    _show_stages(numbers, console)
    _show_totals(numbers, console)
    _show_comparison(numbers, console)
    _show_questions(numbers, console)
    for warning in numbers["warnings"]:
        console.print(f"[yellow]Note:[/] {warning}")


def _show_setting(numbers: dict[str, Any], console: Console) -> None:
    setting = numbers["setting"]
    console.print(
        f"[bold]The paper's method (capePCA, then capeDJICA)[/]: {setting['n_sites']} sites, "
        f"{setting['n_subjects']} subjects, {setting['n_features']} features to "
        f"{setting['n_components']} components, at most {setting['n_iterations']} iterations."
    )
    console.print(
        f"One subject's guarantee: [bold]epsilon {round_up(numbers['epsilon']['exact'])}[/] at delta "
        f"{setting['delta']:g} for all stages together, even if the aggregator and "
        f"{setting['n_colluding']} of the sites pool all they saw ({setting['mask']} masks)."
    )


def _show(title: str, columns: list[str], rows: list[list[str]], console: Console, strong: int = -1) -> None:
    """Print one table; ``strong`` is the row that matters most."""
    console.print(f"\n[bold]{title}[/]")
    table = Table(header_style="dim", box=None, padding=(0, 1), pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for index, row in enumerate(rows):
        table.add_row(*row, style="bold" if index == strong else "")
    console.print(Padding(table, (0, 0, 0, 2)))


def _show_stages(numbers: dict[str, Any], console: Console) -> None:
    columns = ["stage", "numbers", "times", "clip", "noise", "noise/clip", "mu of one", "epsilon"]
    rows = [
        [
            stage["name"],
            f"{stage['n_values']:,}",
            f"{stage['n_releases']:,}",
            f"{stage['clip']:.4g}",
            f"{stage['noise']:.4g}",
            f"{stage['noise_norm']:.4g}",
            round_up(stage["mu"]),
            round_up(stage["epsilon"]),
        ]
        for stage in numbers["stages"]
    ]
    _show("What is released", columns, rows, console)
    console.print("  noise/clip above 1: longer than any one subject's statistic can be.", style="dim")


def _show_totals(numbers: dict[str, Any], console: Console) -> None:
    rows = [
        [title, round_up(numbers["epsilon"][name]), round_up(numbers["epsilon_gradient"][name])]
        for name, title in ACCOUNTANT_TITLES.items()
    ]
    rows += [[title, "–", round_up(numbers["paper_says"][name])] for name, title in PAPER_TITLES.items()]
    _show("Total epsilon", ["accountant", "all stages", "gradient descent alone"], rows, console, strong=0)
    console.print("  The paper leaves capePCA out, and its formulas are no guarantee.", style="dim")


def _show_comparison(numbers: dict[str, Any], console: Console) -> None:
    rows = [
        [name, f"{row['variance_at_equal_epsilon']:.4g}x", round_up(row["epsilon_at_equal_noise"])]
        for name, row in numbers["comparison"].items()
    ]
    columns = ["mechanism", "variance at this epsilon", "epsilon at this noise"]
    _show("Other ways to the same means", columns, rows, console)


def _show_questions(numbers: dict[str, Any], console: Console) -> None:
    rows = [[f"{row['epsilon']:g}", f"{row['subjects']:,}"] for row in numbers["subjects_needed"]]
    _show("How many subjects, at this noise?", ["total epsilon", "subjects"], rows, console)
    rows = [
        [
            str(row["n_colluding"]),
            round_up(row["epsilon"]),
            f"{row['least_threshold']}{'' if row['default_threshold_allows'] else ' (above the default)'}",
        ]
        for row in numbers["colluding"]
    ]
    columns = ["colluding", "epsilon", "threshold of the secure sum, at least"]
    _show("How many sites may collude, at this noise?", columns, rows, console)
    more = numbers["one_more_site"]
    console.print(
        f"\n[bold]What does one more site buy?[/] With {more['subjects_added']} more subjects: epsilon "
        f"{round_up(more['epsilon_at_equal_noise'])} at this noise, or "
        f"{more['noise_at_equal_epsilon']:.4g}x the noise at this epsilon."
    )
