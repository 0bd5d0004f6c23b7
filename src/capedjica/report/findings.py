"""Report section of a group comparison: effects, confidence intervals and detectable effect size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from capedjica.algorithms.analysis import ResultTable
from capedjica.report.downloads import Download, Figure, tsv
from capedjica.report.maps import MapSet, components
from capedjica.report.pictures import charts
from capedjica.report.sections import Section, shown_table
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

LEVEL: Final = 0.05
"""False discovery rate at which an effect is significant; intervals have a level of 1 minus this value."""

_POWER: Final = 0.8
_MOST_SHOWN: Final = 40
# A network covers the features at which its map is at least this fraction of its largest value.
_COVERED: Final = 0.4
_HALF: Final = " Groups are coded -1 and 1, so an effect is half the difference between the groups."
_NOT_ESTIMABLE: Final = (
    "No effect can be estimated: given the noise, the released moments do not show that the covariate of "
    "interest varies within sites."
)
_EXPLORATORY: Final = (
    "Exploratory: the comparison was not fixed before anything was known about these participants. P-values "
    "do not account for the choices made; findings need confirmation in a study of other participants."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Results of a group comparison.

    Attributes
    ----------
    name, summary, article : str
        Its name, a summary of what was computed, and the same as part of a sentence for an article.
    outcome : str
        The kind of outcome: "connectivity", "amplitudes", ...
    contrast : str
        The contrast in words: "patient against control".
    names : sequence of str
        Names of the outcomes.
    effects, standard_errors, p_values, q_values : arrays (d,)
        For each outcome, in its own units.
    low, high : arrays (d,)
        Ends of the 95% interval of each test, not adjusted for multiple tests.
    noise : array (d,)
        Standard deviation of each effect due to privacy noise alone.
    table : ResultTable
        All numbers.
    courses : sequence of str
        Networks, or groups of networks, if outcomes are between pairs of them; otherwise empty.
    on_maps : MapSet, optional
        Effects of single networks, shown on their maps (:func:`effects_on_maps`).
    public_groups : bool
        Whether group membership is public.
    exploratory : bool
        Whether the outcomes or the contrast were not fixed before the first release.
    halved : bool
        Whether an effect is half a difference between two groups, coded -1 and 1.
    """

    name: str
    summary: str
    article: str
    outcome: str
    contrast: str
    names: Sequence[str]
    effects: FloatArray
    standard_errors: FloatArray
    p_values: FloatArray
    q_values: FloatArray
    low: FloatArray
    high: FloatArray
    noise: FloatArray
    table: ResultTable
    courses: Sequence[str] = ()
    on_maps: MapSet | None = None
    public_groups: bool = False
    exploratory: bool = False
    halved: bool = False

    @property
    def found(self) -> NDArray[np.bool_]:
        """Mask of the effects that are significant at the false discovery rate."""
        found: NDArray[np.bool_] = self.q_values <= LEVEL
        return found

    @property
    def strength(self) -> FloatArray:
        """Absolute effects in units of their standard errors."""
        strength: FloatArray = np.abs(self.effects / self.standard_errors)
        return strength

    @property
    def estimable(self) -> bool:
        """Whether the effects could be estimated."""
        return bool(len(self.effects)) and bool(np.isfinite(self.effects).all())


def findings_section(compared: Comparison) -> Section:
    """Build the report section of a group comparison."""
    shown_numbers = shown_table(replace(compared.table, chart="none"))
    if not compared.estimable:
        words = [*_exploratory_words(compared), _NOT_ESTIMABLE, methods_words(compared)]
        return Section(compared.name, compared.summary, compared.article, [shown_numbers], paragraphs=words)
    file, shown = shown_numbers.file, compared.on_maps
    figures = [_matrix(compared, file), _forest(compared, file)]
    return Section(
        compared.name,
        compared.summary,
        compared.article,
        [shown_numbers],
        components=[] if shown is None else components(shown),
        look="" if shown is None else shown.look,
        paragraphs=[
            *_exploratory_words(compared),
            found_words(compared),
            hidden_words(compared),
            methods_words(compared),
        ],
        figures=[figure for figure in figures if figure is not None],
        files=[file, tsv(f"{compared.name}.tsv", compared.table.columns, compared.table.rows)],
    )


# In words


def _exploratory_words(compared: Comparison) -> list[str]:
    return [_EXPLORATORY] * compared.exploratory


def found_words(compared: Comparison) -> str:
    """Return a paragraph about the significant effects."""
    chosen = np.flatnonzero(compared.found)
    if not len(chosen):
        return (
            f"None of {counted(len(compared.names), 'effect')} is significant at a false discovery "
            f"rate of {LEVEL:.0%} ({compared.contrast}). This is not evidence of no difference."
        )
    strongest = chosen[np.argsort(-compared.strength[chosen])]
    listed = "; ".join(_effect_words(compared, number) for number in strongest[:5])
    more = f"; and {len(chosen) - 5} more" if len(chosen) > 5 else ""
    return (
        f"{len(chosen)} of {counted(len(compared.names), 'effect')} {'is' if len(chosen) == 1 else 'are'} "
        f"significant at a false discovery rate of {LEVEL:.0%} ({compared.contrast}): {listed}{more}. "
        f"Filled points and dots mark significant effects.{_HALF if compared.halved else ''}"
    )


def _effect_words(compared: Comparison, number: int) -> str:
    ends = f"{compared.low[number]:.3g} to {compared.high[number]:.3g}"
    return f"{compared.names[number]} {compared.effects[number]:+.3g} (95% interval {ends})"


def hidden_words(compared: Comparison) -> str:
    """Return a paragraph about the effect size that studies like this one detect with 80% power."""
    threshold = norm.isf(LEVEL / (2 * len(compared.names))) + norm.isf(1 - _POWER)
    typical = float(np.median(compared.standard_errors))
    noise = float(np.median(compared.noise))
    part = min(1.0, (noise / typical) ** 2) if typical > 0 else 0.0
    return (
        f"Detectable effects: with a typical standard error of {typical:.3g}, an effect of "
        f"{threshold * typical:.3g} is found in {_POWER:.0%} of studies like this one (Bonferroni over all "
        f"outcomes); smaller effects may well exist undetected. Privacy noise is {part:.0%} of the variance "
        "of a typical effect; the rest is sampling noise and imperfect adjustment."
    )


def methods_words(compared: Comparison) -> str:
    """Return a paragraph for the methods section of an article."""
    groups = (
        " Group sizes per site were public, so group membership was not protected."
        if compared.public_groups
        else " Group membership was protected like all other data."
    )
    when = (
        "The comparison is exploratory: outcomes and contrast were not fixed before the first release."
        if compared.exploratory
        else "Outcomes, design and contrast were fixed before the first release."
    )
    return (
        f"For the methods: In a joint analysis of all sites, {compared.article}. Outcomes were standardised "
        "by public constants and each participant's vector was clipped to a public norm, so effects refer "
        "to clipped outcomes; participants with a missing covariate or without a usable scan contributed "
        "zero. Within-site cross-moments were released with differentially private noise; site effects "
        "cancel in these moments. Standard errors include sampling and privacy noise; intervals are 95% "
        f"intervals per test, and the false discovery rate was controlled at {LEVEL:.0%} (Benjamini and "
        f"Hochberg 1995).{groups} {when}"
    )


# Figures


def _forest(compared: Comparison, file: Download) -> Figure:
    order = np.argsort(-compared.strength, kind="stable")[:_MOST_SHOWN]
    said = "; ".join(_effect_words(compared, number) for number in order[:10])
    left = len(compared.names) - len(order)
    drawing = charts.forest(
        [compared.names[number] for number in order],
        compared.effects[order].tolist(),
        np.column_stack([compared.low, compared.high])[order],
        compared.found[order].tolist(),
        f"effect on {compared.outcome} ({compared.contrast})",
    )
    caption = "Effects with 95% intervals, including privacy noise; the most significant first."
    caption += f" {left:,} more are in the file." if left else ""
    return Figure(alt=f"Effects with intervals. {said}.", caption=caption, drawing=drawing, numbers=file)


def _matrix(compared: Comparison, file: Download) -> Figure | None:
    if not compared.courses:
        return None
    effects, found = pair_matrix(compared.names, compared.courses, compared.effects, compared.found)
    strongest = int(np.argmax(compared.strength))
    return Figure(
        alt=f"Matrix of effects on {compared.outcome} between {len(compared.courses)} networks; the most "
        f"significant is {_effect_words(compared, strongest)}. Significant effects: "
        f"{int(compared.found.sum())}.",
        caption="Red: stronger connectivity; blue: weaker connectivity. Dots mark significant effects.",
        drawing=charts.matrix(effects, compared.courses, "effect", found=found),
        numbers=file,
    )


def pair_matrix(
    names: Sequence[str], courses: Sequence[str], effects: FloatArray, found: NDArray[np.bool_]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return effects on pairs, named "one - other" or "within one", as symmetric matrices."""
    numbers = {name: number for number, name in enumerate(names)}
    values = np.full((len(courses), len(courses)), np.nan)
    marks = np.zeros(values.shape, dtype=bool)
    for row, one in enumerate(courses):
        for column, other in enumerate(courses[row:], start=row):
            name = f"within {one}" if one == other else f"{one} - {other}"
            if (number := numbers.get(name)) is not None:
                values[row, column] = values[column, row] = effects[number]
                marks[row, column] = marks[column, row] = found[number]
    return values, marks


def effects_on_maps(effects: FloatArray, maps: FloatArray) -> FloatArray:
    """Return for each feature the effect on the network that covers it, (1, D), scaled to the largest."""
    sizes = np.abs(maps) / np.abs(maps).max(axis=1, keepdims=True)
    covered = sizes.max(axis=0) >= _COVERED
    largest = float(np.abs(effects).max()) or 1.0
    shown: FloatArray = np.where(covered, effects[sizes.argmax(axis=0)] / largest, 0.0)[np.newaxis]
    return shown
