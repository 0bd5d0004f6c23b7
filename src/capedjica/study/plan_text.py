"""A plan in words and tables, for the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding

from capedjica.privacy.statement import round_up
from capedjica.study.planning import Plan

__all__ = ["round_up", "show_plan"]

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


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan; every number is one of ``plan.as_dict()``."""
    numbers = asdict(plan)
    _show_setting(plan, console)
    _show_stages(numbers, console)
    _show_totals(numbers, console)
    _show_comparison(numbers, console)
    _show_questions(numbers, console)
    for warning in numbers["warnings"]:
        console.print(f"[yellow]Note:[/] {warning}")


def _show_setting(plan: Plan, console: Console) -> None:
    setting = plan.setting
    console.print(
        f"[bold]The paper's method (capePCA, then capeDJICA)[/]: {setting.n_sites} sites, "
        f"{setting.n_subjects} subjects, {setting.n_features} features to "
        f"{setting.n_components} components, at most {setting.n_iterations} iterations."
    )
    console.print(
        f"One subject's guarantee: [bold]epsilon {round_up(plan.epsilon['exact'])}[/] at delta "
        f"{setting.delta:g} for all stages together, even if the aggregator and any "
        f"{setting.n_colluding} of the sites pool all they saw ({setting.mask} masks)."
    )


def _show(title: str, columns: list[str], rows: list[list[str]], console: Console, strong: int = -1) -> None:
    """Print one table; ``strong`` is the row that matters most. A narrow terminal never shortens a number."""
    console.print(f"\n[bold]{title}[/]")
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for index, (first, *others) in enumerate([columns, *rows], start=-1):
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        style = "dim" if index == -1 else "bold" if index == strong else ""
        console.print("  " + "  ".join(cells), style=style, soft_wrap=True)


def _show_note(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 2), expand=False), style="dim")


def _show_stages(numbers: dict[str, Any], console: Console) -> None:
    columns = ["stage", "numbers", "times", "clip", "noise", "noise/clip", "mu each", "epsilon"]
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
    _show_note(
        "noise: standard deviation on each number. noise/clip: length of all of it together against the "
        "longest that the mean can be; above 1, one release has more noise than signal. mu: how far one "
        "subject can move what the adversary sees, in standard deviations. epsilon: of the whole stage.",
        console,
    )


def _show_totals(numbers: dict[str, Any], console: Console) -> None:
    rows = [
        [title, round_up(numbers["epsilon"][name]), round_up(numbers["epsilon_gradient"][name])]
        for name, title in ACCOUNTANT_TITLES.items()
    ]
    rows += [[title, "–", round_up(numbers["paper_says"][name])] for name, title in PAPER_TITLES.items()]
    _show("Total epsilon", ["accountant", "all stages", "gradient descent alone"], rows, console, strong=0)
    _show_note(
        "The paper leaves capePCA out, and its formulas are no guarantee. A dash: it has none for this case.",
        console,
    )


def _show_comparison(numbers: dict[str, Any], console: Console) -> None:
    rows = [
        [name, f"{row['variance_at_equal_epsilon']:.4g}x", round_up(row["epsilon_at_equal_noise"])]
        for name, row in numbers["comparison"].items()
    ]
    columns = ["mechanism", "variance at this epsilon", "epsilon at this noise"]
    _show("Other ways to the same means", columns, rows, console)
    _show_note(
        "pooled: a trusted curator holds all data. conventional: each site adds all the noise it needs. "
        "local: the largest site works alone.",
        console,
    )


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
    columns = ["colluding", "epsilon", "sites that must stay to the end, at least"]
    _show("How many sites may collude, at this noise?", columns, rows, console)
    more = numbers["one_more_site"]
    console.print(
        f"\n[bold]What does one more site buy?[/] With {more['subjects_added']} more subjects: epsilon "
        f"{round_up(more['epsilon_at_equal_noise'])} at this noise, or "
        f"{more['noise_at_equal_epsilon']:.4g}x the noise at this epsilon."
    )
