"""A plan in words and tables, for the terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from capedjica.privacy.statement import round_up
from capedjica.study.describe import METHODS, protects_against
from capedjica.study.planning import Plan
from capedjica.study.text import printable, show_heading, show_paragraph, show_table

ACCOUNTANTS: Final = {
    "exact": "exact",
    "rdp": "Renyi, best order",
    "moments": "moments accountant",
    "strong": "strong composition",
    "naive": "naive composition",
}
PAPER: Final = {
    "rdp_corrected_output_only": "paper's RDP, sigma corrected",
    "rdp_as_printed": "paper's RDP as printed",
    "moments_as_printed": "paper's moments as printed",
    "theorem_2_total": "paper's Theorem 2",
}


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan; every number is one of ``plan.as_dict()``."""
    _show_setting(plan, console)
    _show_stages(plan, console)
    if plan.contract.mechanism != "none":
        _show_sites(plan, console)
        _show_totals(plan, console)
        _show_comparison(plan, console)
        _show_questions(plan, console)
    for warning in plan.warnings:
        console.print()
        console.print(Text.assemble(("Note: ", "yellow"), warning))


def _show_setting(plan: Plan, console: Console) -> None:
    contract, analysis = plan.contract, plan.analysis
    n_releases = sum(stage.n_releases for stage in plan.stages)
    console.print(Text(printable(contract.title), style="bold"))
    console.print(
        f"{METHODS[analysis.method]}: {len(contract.subjects)} sites, {sum(contract.subjects):,} subjects, "
        f"{analysis.n_features:,} features to {analysis.n_components} components, scans of up to "
        f"{analysis.scan_length:,} time points; at most {n_releases:,} releases."
    )
    if contract.mechanism == "none":
        return
    masks = f" ({contract.mask} masks)" if contract.mechanism == "cape" else ""
    console.print(
        Text.assemble(
            "One subject's guarantee: ",
            (f"epsilon {round_up(plan.budget)}", "bold"),
            f" at delta {contract.delta:g} for all stages together, against "
            f"{protects_against(contract)}{masks}.",
        )
    )


def _show_stages(plan: Plan, console: Console) -> None:
    columns = ["stage", "numbers", "times", "clip", "noise", "noise/clip", "mu each", "epsilon"]
    rows = [
        [
            stage.name,
            f"{stage.n_values:,}",
            f"{stage.n_releases:,}",
            f"{stage.clip:.4g}",
            f"{stage.noise:.4g}",
            f"{stage.noise_norm:.4g}",
            round_up(stage.mu),
            round_up(stage.epsilon),
        ]
        for stage in plan.stages
    ]
    show_heading("What is released", console)
    show_table(columns, rows, console)
    show_paragraph(
        "noise: standard deviation on each number. noise/clip: length of all of it together against the "
        "longest that the mean can be; above 1, one release has more noise than signal. mu: how far one "
        "subject can move what the adversary sees, in standard deviations. epsilon: of the whole stage.",
        console,
        "dim",
    )


def _show_sites(plan: Plan, console: Console) -> None:
    """Print what each site may spend and is planned to, where sites differ."""
    if len({(site.budget, round_up(site.epsilon)) for site in plan.sites}) == 1:
        return
    rows = [
        [site.name, f"{site.subjects:,}", round_up(site.budget), round_up(site.epsilon)]
        for site in plan.sites
    ]
    show_heading("What each site spends", console)
    show_table(["site", "subjects", "budget (epsilon)", "planned"], rows, console)


def _show_totals(plan: Plan, console: Console) -> None:
    show_heading("Total epsilon of the planned releases", console)
    columns = ["accountant", "all stages"]
    rows = [[title, round_up(plan.epsilon[name])] for name, title in ACCOUNTANTS.items()]
    if plan.epsilon_descent:
        columns.append("gradient descent alone")
        rows = [
            [*row, round_up(plan.epsilon_descent[name])] for row, name in zip(rows, ACCOUNTANTS, strict=True)
        ]
    if plan.paper_says:
        rows += [[title, "–", round_up(plan.paper_says[name])] for name, title in PAPER.items()]
    show_table(columns, rows, console, strong=0)
    if plan.contract.reserve:
        show_paragraph(
            f"{plan.contract.reserve:.4g} of the budget (of mu^2) is held back for what must be asked again.",
            console,
            "dim",
        )
    if plan.paper_says:
        show_paragraph(
            "The paper leaves capePCA out, and its formulas are no guarantee. A dash: it has none for this "
            "case.",
            console,
            "dim",
        )


def _show_comparison(plan: Plan, console: Console) -> None:
    rows = [
        [name, f"{row['variance_at_equal_epsilon']:.4g}x", round_up(row["epsilon_at_equal_noise"])]
        for name, row in plan.comparison.items()
    ]
    show_heading("Other ways to the same means", console)
    show_table(["mechanism", "variance at this epsilon", "epsilon at this noise"], rows, console)
    show_paragraph(
        "pooled: a trusted curator holds all data. conventional: each site adds all the noise it needs. "
        "local: the largest site works alone.",
        console,
        "dim",
    )


def _show_questions(plan: Plan, console: Console) -> None:
    show_heading("How many subjects, at this noise?", console)
    rows = [[f"{row['epsilon']:g}", f"{row['subjects']:,}"] for row in plan.subjects_needed]
    show_table(["total epsilon", "subjects"], rows, console)
    if plan.colluding:
        _show_colluding(plan, console)
    if plan.one_more_site:
        more = plan.one_more_site
        show_heading("What does one more site buy?", console)
        show_paragraph(
            f"With {more['subjects_added']:,} more subjects: epsilon "
            f"{round_up(more['epsilon_at_equal_noise'])} at this noise, or "
            f"{more['noise_at_equal_epsilon']:.4g}x the noise at this epsilon.",
            console,
        )


def _show_colluding(plan: Plan, console: Console) -> None:
    show_heading("How many sites may collude, at this noise?", console)
    rows = [
        [
            str(row["n_colluding"]),
            round_up(row["epsilon"]),
            f"{row['least_threshold']}{'' if row['default_threshold_allows'] else ' (above the default)'}",
        ]
        for row in plan.colluding
    ]
    show_table(["colluding", "epsilon", "sites that must stay to the end, at least"], rows, console)
