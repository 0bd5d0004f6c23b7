"""Text and tables of a plan, for the terminal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.text import Text

from capedjica.coordinator.planning.plan import Plan
from capedjica.coordinator.planning.prediction import CAVEAT, USABLE, Prediction
from capedjica.privacy.wording import round_up
from capedjica.study.analyses.base import POWER
from capedjica.tools.terminal import show_heading, show_paragraph, show_table
from capedjica.tools.text import counted, printable

_ACCOUNTANT_NAMES: Final = {
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
    """Print a plan; every number is also in ``plan.as_dict()``."""
    _show_setting(plan, console)
    _show_stages(plan, console)
    _show_detectable(plan, console)
    if plan.contract.private:
        _show_sites(plan, console)
        _show_totals(plan, console)
        _show_comparison(plan, console)
        _show_questions(plan, console)
    for warning in plan.warnings:
        console.print()
        console.print(Text.assemble(("Note: ", "yellow"), warning))


def _show_setting(plan: Plan, console: Console) -> None:
    contract = plan.contract
    n_releases = sum(stage.n_releases for stage in plan.stages)
    console.print(Text(printable(contract.title), style="bold"))
    for step in plan.study.steps:
        console.print(f"{step.table.summary(step.setting)}.")
    console.print(
        f"{counted(len(contract.participants), 'site')}, {sum(contract.participants.values()):,} "
        f"{contract.unit.plural()}; {counted(n_releases, 'release')} planned."
    )
    if not contract.private:
        return
    masks = f", {contract.masking} masks" if contract.mechanism == "cape" else ""
    console.print(f"Mechanism: {contract.mechanism}{masks}.")
    guarantee = replace(contract.guarantee(), not_covered=plan.study.not_covered)
    console.print(Text(guarantee.protected, style="bold"))
    for words in (*guarantee.summary[1:], *guarantee.caveats):
        console.print(Text(words))


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
    show_heading("Releases", console)
    show_table(columns, rows, console)
    show_paragraph(
        "noise: standard deviation on each number. noise/clip: norm of the noise relative to the largest "
        "norm of the mean; above 1, one release has more noise than signal. mu: largest shift of the "
        f"adversary's view due to one {plan.contract.unit.named()}, in standard deviations. epsilon: total "
        "of the stage.",
        console,
        "dim",
    )


def _show_detectable(plan: Plan, console: Console) -> None:
    """Print the detectable differences of group comparisons."""
    if not plan.detectable:
        return
    rows = [
        [
            f"{name}: {one['contrast']}",
            f"{one['n_outcomes']:,}",
            f"{one['single']:.3f}",
            f"{one['among_all']:.3f}",
            f"{one['without_privacy']:.3f}",
        ]
        for name, found in plan.detectable.items()
        for one in found
    ]
    show_heading("Detectable differences", console)
    show_table(["contrast", "outcomes", "one test", "all outcomes", "one, no privacy"], rows, console)
    show_paragraph(
        f"In standard deviations of an outcome, detected with a power of {POWER:.0%} by one test at 5%, and "
        "with correction for all outcomes (Bonferroni). Assumes that centre and scale are approximately "
        "right and that one group has a third of the participants at every site.",
        console,
        "dim",
    )


def _show_sites(plan: Plan, console: Console) -> None:
    """Print the budget and the planned cost of each site, if sites differ."""
    if len({(site.budget, round_up(site.epsilon)) for site in plan.sites}) == 1:
        return
    rows = [
        [site.name, f"{site.subjects:,}", round_up(site.budget), round_up(site.epsilon)]
        for site in plan.sites
    ]
    show_heading("Cost by site", console)
    show_table(["site", "participants", "budget (epsilon)", "planned"], rows, console)


def _show_totals(plan: Plan, console: Console) -> None:
    show_heading("Total epsilon of the planned releases", console)
    columns = ["accountant", "all stages"]
    rows = [[title, round_up(plan.epsilon[name])] for name, title in _ACCOUNTANT_NAMES.items()]
    if plan.epsilon_descent:
        columns.append("gradient descent alone")
        rows = [
            [*row, round_up(plan.epsilon_descent[name])]
            for row, name in zip(rows, _ACCOUNTANT_NAMES, strict=True)
        ]
    if plan.paper_says:
        rows += [[title, "–", round_up(plan.paper_says[name])] for name, title in PAPER.items()]
    show_table(columns, rows, console, strong=0)
    if plan.contract.reserve:
        show_paragraph(
            f"{plan.contract.reserve:.4g} of the budget (of mu^2) is reserved for releases that must be "
            "repeated.",
            console,
            "dim",
        )
    if plan.paper_says:
        show_paragraph(
            "The paper's accounting omits capePCA, and its formulas are not a guarantee. A dash means that "
            "the paper has no formula for this case.",
            console,
            "dim",
        )


def _show_comparison(plan: Plan, console: Console) -> None:
    rows = [
        [name, f"{row['variance_at_equal_epsilon']:.4g}x", round_up(row["epsilon_at_equal_noise"])]
        for name, row in plan.comparison.items()
    ]
    show_heading("Comparison of mechanisms", console)
    show_table(["mechanism", "variance at this epsilon", "epsilon at this noise"], rows, console)
    show_paragraph(
        "pooled: a trusted curator holds all data. conventional: each site adds all the noise it needs. "
        "local: only the largest site is used.",
        console,
        "dim",
    )


def _show_questions(plan: Plan, console: Console) -> None:
    show_heading("Participants needed at this noise", console)
    rows = [[f"{row['epsilon']:g}", f"{row['subjects']:,}"] for row in plan.subjects_needed]
    show_table(["total epsilon", "participants"], rows, console)
    if plan.colluding:
        _show_colluding(plan, console)
    if plan.one_more_site:
        more = plan.one_more_site
        show_heading("Effect of one more site", console)
        show_paragraph(
            f"With {more['subjects_added']:,} more participants: epsilon "
            f"{round_up(more['epsilon_at_equal_noise'])} at this noise, or "
            f"{more['noise_at_equal_epsilon']:.4g}x the noise at this epsilon.",
            console,
        )


def _show_colluding(plan: Plan, console: Console) -> None:
    show_heading("Epsilon by number of colluding sites, at this noise", console)
    rows = [
        [
            str(row["n_colluding"]),
            round_up(row["epsilon"]),
            f"{row['least_threshold']}{'' if row['default_threshold_allows'] else ' (above the default)'}",
        ]
        for row in plan.colluding
    ]
    show_table(["colluding", "epsilon", "minimum number of sites that must finish"], rows, console)


# Width of a bar in terminal columns.
BAR: Final = 28
NUMBERS: Final = ("gain index", "from", "to", "maps")


def show_prediction(prediction: Prediction, console: Console) -> None:
    """Print a prediction as a chart; every number is also in ``prediction.as_dict()``."""
    qualities = prediction.qualities
    full, line = "#|" if console.options.ascii_only else "█│"
    largest = max(2 * USABLE, *(quality.gain_index for quality in qualities))
    limit = round(USABLE / largest * BAR)
    title = f"{' ' * limit}{line} usable below {USABLE:g}".ljust(BAR)
    rows = []
    for quality in qualities:
        epsilon = f"{quality.epsilon:.4g}" if math.isfinite(quality.epsilon) else "none"
        cells = (full * round(quality.gain_index / largest * BAR)).ljust(BAR)
        bar = f"{cells[:limit]}{line}{cells[limit + 1 :]}"
        values = (quality.gain_index, *quality.gain_index_range)
        rows.append(
            [
                f"{epsilon} (planned)" if quality.planned else epsilon,
                bar.ljust(len(title)),
                *(f"{value:.3f}" for value in values),
                f"{quality.map_correlation:.2f}",
            ]
        )
    show_heading("Predicted quality of the maps", console)
    strong = qualities.index(prediction.planned)
    show_table(["epsilon", title, *NUMBERS], rows, console, strong)
    show_paragraph(_how(prediction), console, "dim")
    show_paragraph(CAVEAT, console)


def _how(prediction: Prediction) -> str:
    text = (
        f"Gain index (0 is perfect) and correlation of the maps with the true ones: medians of "
        f"{prediction.repetitions} simulations, with the range of the gain index. This index measures how "
        "well the networks are separated; only the correlation also includes the noise in the maps. "
        f"Simulated: {prediction.simulated_subjects:,} participants with the noise planned for "
        f"{prediction.subjects:,}"
    )
    if prediction.simulated_subjects < prediction.subjects:
        text += ", with the gain index corrected for their larger sampling error"
    if prediction.subspace_noise_factor != 1:
        text += (
            f"; images of {prediction.image_side} x {prediction.image_side} pixels, with the subspace noise "
            f"multiplied by {prediction.subspace_noise_factor:.3g} to correct for their size"
        )
    if prediction.template_correlation is not None:
        known = f"{prediction.template_correlation:g}"
        text += f"; the template's maps have a correlation of {known} with the true ones"
    return f"{text}."
