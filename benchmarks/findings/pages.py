"""The page and the figure of a benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.framework import machine
from benchmarks.utility.shared.report import markdown

Rows = Sequence[dict[str, Any]]
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666")


@dataclass(frozen=True)
class Page:
    """What is said about a benchmark: its words, the columns shown, and its figure."""

    words: str
    columns: tuple[str, ...]
    figure: Callable[[Rows], Figure]
    command: str


def write_page(path: Path, page: Page, title: str, rows: Rows, origin: str) -> None:
    """Write the table with its words, and the figure."""
    shown = [[_cell(row[name]) for name in page.columns] for row in rows]
    heading = [name.replace("_", " ") for name in page.columns]
    table = markdown([heading, ["---"] * len(heading), *shown])
    made_by = f"`{page.command}`, {origin}, {machine()['cpu']}"
    files = f"[Figure]({path.stem}.svg), [all numbers]({path.name})."
    path.with_suffix(".md").write_text(
        f"# {title[0].upper() + title[1:]}\n\n{page.words}\n\n{files}\n\n{table}\n\nMade by {made_by}. "
        "δ = 1e-5. Noise is drawn afresh: figures change within their standard errors.\n",
        encoding="utf-8",
    )
    with rc_context({"svg.hashsalt": path.stem, "font.size": 9}):
        page.figure(rows).savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if value.is_integer() else f"{value:.3f}"


def _lines(
    rows: Rows, panels: Sequence[tuple[str, Rows]], series: str, value: str, bounds: tuple[float, ...] = ()
) -> Figure:
    """Return panels with a line against epsilon for every value of a column."""
    figure = Figure(figsize=(3.2 * len(panels), 3.1), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(row[series] for row in rows))
    for axis, (title, own) in zip(axes, panels, strict=True):
        for colour, name in zip(COLOURS, names, strict=False):
            points = sorted((row["epsilon"], row[value]) for row in own if row[series] == name)
            label = name if isinstance(name, str) else f"{series} {name:g}"
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=label, markersize=3)
        for bound in bounds:
            axis.axhline(bound, color="0.7", linewidth=0.8, linestyle="--")
        axis.set(xscale="log", xlabel="ε", title=title)
    axes[0].set_ylabel(value.replace("_", " "))
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _calibration(rows: Rows) -> Figure:
    chosen = [row for row in rows if row["path"] == "moments" and not row["true_effects"]]
    panels = [(mode, [row for row in chosen if row["mode"] == mode]) for mode in ("private", "public-groups")]
    return _lines(chosen, panels, "people", "type_1", (0.04, 0.05, 0.06))


def _permuted(rows: Rows) -> Figure:
    chosen = [row for row in rows if row["path"] == "moments"]
    panels = [(mode, [row for row in chosen if row["mode"] == mode]) for mode in ("private", "public-groups")]
    return _lines(chosen, panels, "outcome", "type_1", (0.04, 0.05, 0.06))


def _truth(rows: Rows) -> Figure:
    ways = {
        "private comparison": "power",
        "theory": "power_in_theory",
        "least squares": "power_non_private",
        "meta-analysis": "power_meta_analysis",
    }
    long = [row | {"way": way, "shown power": row[name]} for row in rows for way, name in ways.items()]
    panels = [
        (f"{mode}, M = {people:g}", [r for r in long if r["mode"] == mode and r["people"] == people])
        for mode in ("private", "public-groups")
        for people in dict.fromkeys(row["people"] for row in rows)
    ]
    return _lines(long, panels, "way", "shown power")


def _abide(rows: Rows) -> Figure:
    panels = [
        (f"{outcome}, {mode}", [r for r in rows if r["outcome"] == outcome and r["mode"] == mode])
        for outcome in dict.fromkeys(row["outcome"] for row in rows)
        for mode in ("public-groups", "private")
    ]
    return _lines(rows, panels, "way", "correlation")


PAGES: Final = {
    "calibration": Page(
        "20 outcomes, 8 unequal and unbalanced sites with effects of 0.5 standard deviations; group and age "
        "are correlated by 0.4, and age moves every outcome by 0.3. Type-I error of single tests at 5%, "
        "coverage of 95% intervals, false discovery rate at q = 0.05. Where M and ε are small, variances are "
        "bounded by the public scale, and tests are conservative.",
        (
            "people",
            "true_effects",
            "mode",
            "epsilon",
            "path",
            "variances",
            "repetitions",
            "type_1",
            "coverage",
            "fdr",
            "fdr_error",
        ),
        _calibration,
        "python -m benchmarks.findings calibration",
    ),
    "permuted": Page(
        "17 private sites of ABIDE; 20 amplitudes or blocks of networks of the three public sites, adjusted "
        "for age, sex and site. Diagnoses are permuted within sites, so every finding is false. Type-I error "
        "of single tests at 5%, coverage of 95% intervals (of 0), false discovery rate at q = 0.05.",
        ("outcome", "mode", "epsilon", "path", "repetitions", "type_1", "coverage", "fdr", "fdr_error"),
        _permuted,
        "python -m benchmarks.findings permuted FOLDER --whole 3",
    ),
    "truth": Page(
        "Four of 20 outcomes differ by 0.25 standard deviations per unit of the coded contrast. What is "
        "estimated is the coefficient of clipped outcomes. Meta-analysis: every site publishes effects with "
        "noise of its own, weighted by precision, unadjusted for age; its type-I error shows what that does.",
        (
            "people",
            "mode",
            "epsilon",
            "of_clipped",
            "bias",
            "coverage",
            "power",
            "power_in_theory",
            "power_non_private",
            "power_meta_analysis",
            "type_1_meta_analysis",
        ),
        _truth,
        "python -m benchmarks.findings truth --repetitions 300",
    ),
    "abide": Page(
        "A benchmark of utility, not a finding about autism. 17 private sites; networks, centre, scale, "
        "correlation and the prediction of outcomes from age and sex are those of three sites taken as "
        "public (USM, UCLA_1, UM_1). Adjusted for age, sex and site; with public groups for age and sex by "
        "that prediction alone, and what is left of their imbalance is part of the errors. The folder has "
        "no column of motion, so motion is not adjusted for. Correlation of effects with those of the non-"
        "private model; the part of its findings (q at most 0.05) that are found again; the size of a non-"
        "private subsample with equal errors.",
        (
            "outcome",
            "numbers",
            "mode",
            "way",
            "epsilon",
            "correlation",
            "correlation_error",
            "found_again",
            "non_private_findings",
            "standard_error",
            "equal_subsample",
            "repetitions",
        ),
        _abide,
        "python -m benchmarks.findings abide FOLDER --repetitions 300 --whole 3",
    ),
}
