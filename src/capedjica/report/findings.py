"""The section of a report about a group comparison: effects, their intervals, and what noise could hide."""

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
"""The false discovery rate at which an effect counts as found, and of the intervals."""

_POWER: Final = 0.8
_MOST_SHOWN: Final = 40
# A network covers the features where its map has at least this part of its largest value.
_COVERED: Final = 0.4
_HALF: Final = " Groups are coded -1 and 1, so an effect is half the difference between them."
_NOT_ESTIMABLE: Final = (
    "No effect can be estimated: the released moments do not show, beyond their noise, that the column of "
    "interest varies within sites."
)
_EXPLORATORY: Final = (
    "Exploratory: what is compared was not fixed before something about these people was known. P-values "
    "do not count the choices that were made; what is found asks for a study of other people."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """What a group comparison found.

    Attributes
    ----------
    name, summary, article : str
        What it is called, what was computed, and the same as part of a sentence of an article.
    outcome : str
        Which outcome it is of: "connectivity", "amplitudes", ...
    contrast : str
        What is compared, in words: "patient against control".
    names : sequence of str
        Of the outcomes.
    effects, standard_errors, p_values, q_values : arrays (d,)
        Of each outcome, in its own units.
    low, high : arrays (d,)
        Ends of the interval of each test by itself, at 95%.
    noise : array (d,)
        Standard deviation that privacy alone adds to each effect.
    courses : sequence of str
        Networks, or groups of them, between which the outcomes are; empty where they are not between two.
    on_maps : MapSet, optional
        Effects of single networks where these are (:func:`effects_on_maps`).
    public_groups : bool
        Whether group membership is public.
    exploratory : bool
        Whether what is compared was not fixed before the first release.
    halved : bool
        Whether an effect is half a difference, that of two groups coded -1 and 1.
    table : ResultTable
        All numbers.
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
        """Which effects are significant at the false discovery rate."""
        found: NDArray[np.bool_] = self.q_values <= LEVEL
        return found

    @property
    def strength(self) -> FloatArray:
        """Effects in units of their standard errors, without their sign."""
        strength: FloatArray = np.abs(self.effects / self.standard_errors)
        return strength

    @property
    def estimable(self) -> bool:
        """Whether there are effects at all."""
        return bool(len(self.effects)) and bool(np.isfinite(self.effects).all())


def findings_section(compared: Comparison) -> Section:
    """Return the section."""
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
    """Return what was found."""
    chosen = np.flatnonzero(compared.found)
    if not len(chosen):
        return (
            f"None of {counted(len(compared.names), 'outcome')} differs significantly at a false discovery "
            f"rate of {LEVEL:.0%} ({compared.contrast}). That is no evidence that there is no difference."
        )
    strongest = chosen[np.argsort(-compared.strength[chosen])]
    listed = "; ".join(_effect_words(compared, number) for number in strongest[:5])
    more = f"; and {len(chosen) - 5} more" if len(chosen) > 5 else ""
    return (
        f"{len(chosen)} of {counted(len(compared.names), 'outcome')} {'is' if len(chosen) == 1 else 'are'} "
        f"significant at a false discovery rate of {LEVEL:.0%} ({compared.contrast}): {listed}{more}. "
        f"Filled points and dots mark them.{_HALF if compared.halved else ''}"
    )


def _effect_words(compared: Comparison, number: int) -> str:
    ends = f"{compared.low[number]:.3g} to {compared.high[number]:.3g}"
    return f"{compared.names[number]} {compared.effects[number]:+.3g} (95% interval {ends})"


def hidden_words(compared: Comparison) -> str:
    """Return what noise could hide: the effect that had been found in four of five studies like this."""
    threshold = norm.isf(LEVEL / (2 * len(compared.names))) + norm.isf(1 - _POWER)
    typical = float(np.median(compared.standard_errors))
    noise = float(np.median(compared.noise))
    part = min(1.0, (noise / typical) ** 2) if typical > 0 else 0.0
    return (
        f"What noise could hide: with a typical standard error of {typical:.3g}, an effect of "
        f"{threshold * typical:.3g} is found in {_POWER:.0%} of studies like this one (Bonferroni over all "
        f"outcomes); smaller ones may well be there unseen. Noise for privacy is {part:.0%} of the variance "
        "of a typical effect, the rest is that of sampling people and of imperfect adjustment."
    )


def methods_words(compared: Comparison) -> str:
    """Return a paragraph for an article."""
    groups = (
        " Group sizes per site were public, so that group membership was not protected."
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
        "by public constants and each participant's vector was clipped to a public norm, so effects are "
        "those on clipped outcomes; participants without a covariate or a usable scan contributed zero. "
        "Within-site cross-moments were released with differentially private noise, so that site effects "
        "cancel. Standard errors include sampling and privacy noise; intervals are per test at 95%, and "
        f"false discoveries were controlled at {LEVEL:.0%} (Benjamini and Hochberg 1995).{groups} {when}"
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
    caption = "Effects with 95% intervals, noise for privacy included; the clearest first."
    caption += f" {left:,} more are in the file." if left else ""
    return Figure(alt=f"Effects with intervals. {said}.", caption=caption, drawing=drawing, numbers=file)


def _matrix(compared: Comparison, file: Download) -> Figure | None:
    if not compared.courses:
        return None
    effects, found = pair_matrix(compared.names, compared.courses, compared.effects, compared.found)
    strongest = int(np.argmax(compared.strength))
    return Figure(
        alt=f"Matrix of effects on {compared.outcome} between {len(compared.courses)} networks; the clearest "
        f"is {_effect_words(compared, strongest)}. {int(compared.found.sum())} are significant.",
        caption="Red: stronger, blue: weaker connectivity. A dot marks what is significant.",
        drawing=charts.matrix(effects, compared.courses, "effect", found=found),
        numbers=file,
    )


def pair_matrix(
    names: Sequence[str], courses: Sequence[str], effects: FloatArray, found: NDArray[np.bool_]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return effects between pairs, named "one - other" or "within one", as symmetric matrices."""
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
    """Return for every feature the effect of the network that covers it, (1, D), in units of the largest."""
    sizes = np.abs(maps) / np.abs(maps).max(axis=1, keepdims=True)
    covered = sizes.max(axis=0) >= _COVERED
    largest = float(np.abs(effects).max()) or 1.0
    shown: FloatArray = np.where(covered, effects[sizes.argmax(axis=0)] / largest, 0.0)[np.newaxis]
    return shown
