"""``kind = "group-comparison"``: whether groups differ in outcomes of people, or these go with a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import msgspec
import numpy as np

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.glm.analysis import (
    DESIGN_LABEL,
    EFFECTS_LABEL,
    LEADING,
    PRODUCTS_LABEL,
    VARIANCES_LABEL,
    GroupComparisonAnalysis,
    attenuation,
)
from capedjica.algorithms.glm.design import Column, Design, is_missing
from capedjica.algorithms.glm.power import (
    Noise,
    minimum_detectable_effect,
    tuned,
)
from capedjica.algorithms.ica.scan_length import longest_scan
from capedjica.algorithms.outcomes import Standard, default_clip, from_theory, theory_constants
from capedjica.algorithms.tables.values import OfScans
from capedjica.data.covariates import MOTION
from capedjica.errors import InputError
from capedjica.study.analyses.base import POWER, Detectable, Positive, Setting, Words
from capedjica.study.analyses.tabular import Number, RowsTable
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Level = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Origin = Literal["theory", "public-cohort", "earlier-study"]
_ORIGINS: Final = {
    "theory": "from theory, by the length of scans",
    "public-cohort": "from a public cohort, nobody of which takes part",
    "earlier-study": "from the published results of an earlier study",
}
_LEVEL: Final = 0.05
# Variances of a coded contrast within sites: of groups of which one is a third, and of a number that is
# anywhere in its range.
_GROUPS: Final = 0.9
_EVENLY: Final = 1 / 3
_MISSING: Final = "A person without one of these, or with a scan of no use, counts as zero; all stay counted."


@dataclass(frozen=True, eq=False)
class DesignNumbers:
    """A person's numbers of the design, from their covariates; those that lead the row first."""

    comparison: GroupComparisonAnalysis
    motion: bool

    @property
    def size(self) -> int:
        """How many there are."""
        return LEADING + self.comparison.design.size

    def of(self, covariates: Mapping[str, Any], site: str) -> FloatArray:
        """Return the numbers; NaN for what is missing."""
        design = self.comparison.design.encode(covariates)
        return np.concatenate([self.comparison.leading(site, float(design[0])), design])


@dataclass(frozen=True)
class _ShareOfNoise:
    """The noise of an analysis that has its part of a study's budget."""

    noise: float

    @property
    def mechanism(self) -> str:
        return "cape" if self.noise else "none"

    def mean_noise(self, subjects: Sequence[int], share: float) -> float:
        return self.noise / math.sqrt(share)


class ColumnTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A column of ``participants.tsv``: a number with its public range, or a category with its levels."""

    name: ColumnName
    range: tuple[Number, Number] | None = None
    levels: tuple[Level, ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it."""
        if (self.range is None) == (not self.levels):
            yield f"column {self.name!r} must have either a range (of a number) or levels (of a category)"
            return
        try:
            self.column()
        except InputError as error:
            yield str(error)

    def column(self) -> Column:
        """Return it as part of a design."""
        return Column.of(self.name, self.levels if self.range is None else self.range)

    @property
    def words(self) -> str:
        """What may stand in it."""
        if self.range is None:
            return f"{self.name} ({' or '.join(self.levels)})"
        return f"{self.name} ({self.range[0]:g} to {self.range[1]:g})"


class GroupSizes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many people of a site are in each level of the contrast, in the order of the levels."""

    site: str
    sizes: tuple[Size, Size]


class GroupComparisonTable(RowsTable, frozen=True, kw_only=True):
    """How outcomes of people differ between two groups, or go with a number."""

    kind: Literal["group-comparison"] = "group-comparison"
    contrast: ColumnName
    columns: tuple[ColumnTable, ...]
    mode: Literal["private", "public-groups"] = "private"
    group_sizes: tuple[GroupSizes, ...] = ()
    motion: bool = False
    motion_limit: Positive = 0.5
    clip: Positive | None = None
    origin: Origin = "theory"
    exploratory: bool = False

    meanings: ClassVar[Words] = {
        VARIANCES_LABEL: "how much the numbers vary between people of the same site",
        DESIGN_LABEL: "how much the columns vary between people of the same site, and which go together",
        PRODUCTS_LABEL: "how much the columns differ between the groups of a site",
        EFFECTS_LABEL: "how the numbers go with the column of interest, differences between sites taken out",
    }
    comments: ClassVar[Words] = {
        **RowsTable.comments,
        "contrast": "The column of interest: two levels, or a number.",
        "columns": "Columns of participants.tsv: numbers with a public range, to which others are clipped, "
        "categories with their public levels.",
        "mode": '"private": nothing about a person is public. "public-groups": how many people of each site '
        "are in which group is, and who is in which group is NOT protected.",
        "group_sizes": "People of each site in each level of the contrast, in that order.",
        "motion": "Whether mean framewise displacement, from the tables of confounds, is accounted for.",
        "motion_limit": "Its public range is from 0 to this, in mm.",
        "clip": "Longest vector of one person's standardised numbers; by default 0.8 sqrt(numbers).",
        "origin": 'Where center and scale come from: "theory" (by the length of scans; then neither is '
        'given), "public-cohort" or "earlier-study"; never from the people of this study.',
        "exploratory": "Whether outcomes, groups or contrast were chosen after something about these people "
        "was known; the report and the methods say so then.",
    }

    @property
    def participant_columns(self) -> tuple[str, ...]:
        """The columns of the design; motion is in none."""
        return tuple(column.name for column in self.columns)

    @property
    def constants(self) -> Mapping[str, Any]:
        """Those of the theory that centre and scale come from."""
        return theory_constants(self.values) if self.origin == "theory" and self.values != "average" else {}

    @property
    def not_covered(self) -> tuple[str, ...]:
        """That groups are public, where they are."""
        return () if self.mode == "private" else self.design.not_covered

    # What is wrong

    def problems(self, setting: Setting) -> list[str]:
        """Return what is wrong with outcomes and design."""
        found = super().problems(setting)
        found += [f"analysis.columns: {words}" for column in self.columns for words in column.problems()]
        found += [
            f"analysis.columns: {times} of them are {name!r}"
            for name, times in Counter(self.participant_columns).items()
            if times > 1
        ]
        if self.motion and MOTION in self.participant_columns:
            found.append(f"analysis.motion: there is a column {MOTION!r} too; leave one of them out")
        if self.motion and setting.features.kind not in ("atlas", "voxels"):
            found.append(
                "analysis.motion needs fMRIPrep's confounds, beside images; features.kind is "
                f"{setting.features.kind!r}: give motion as a column of participants.tsv"
            )
        if self.contrast not in self.participant_columns:
            names = ", ".join(self.participant_columns) or "none"
            found.append(f"analysis.contrast must be one of the columns ({names}); got {self.contrast!r}")
        elif len(self._contrast.levels) > 2:
            found.append(
                f"analysis.contrast {self.contrast!r} has {len(self._contrast.levels)} levels; compare two"
            )
        return found + self._scale_problems(setting) + self._group_problems(setting)

    def _scale_problems(self, setting: Setting) -> list[str]:
        given = bool(self.center), bool(self.scale)
        if self.origin != "theory" and not all(given):
            return [f"analysis.center and analysis.scale are missing: analysis.origin is {self.origin!r}"]
        if self.origin == "theory" and any(given):
            return ["analysis.origin must say where center and scale come from; 'theory' needs neither"]
        if self.origin == "theory" and self.values == "average":
            return ["analysis.values 'average' has no theory: give center, scale and origin"]
        return []

    def _group_problems(self, setting: Setting) -> list[str]:
        if self.mode == "private":
            return ["analysis.group_sizes is for mode 'public-groups'"] if self.group_sizes else []
        if self.contrast in self.participant_columns and not self._contrast.levels:
            return [f"analysis.mode 'public-groups' needs two groups; {self.contrast!r} is a number"]
        sizes = {one.site: sum(one.sizes) for one in self.group_sizes}
        found = [
            f"analysis.group_sizes: {sizes.get(site, 'nothing')} of site {site}, which enrols {enrolled}"
            for site, enrolled in setting.sites.items()
            if sizes.get(site) != enrolled
        ]
        found += [
            f"analysis.group_sizes: no site is called {site!r}" for site in sizes if site not in setting.sites
        ]
        return found if setting.sites else []

    @property
    def _contrast(self) -> ColumnTable:
        return next(column for column in self.columns if column.name == self.contrast)

    @property
    def design(self) -> Design:
        """What is compared, and what is adjusted for."""
        others = [column.column() for column in self.columns if column.name != self.contrast]
        others += [Column(MOTION, "number", 0.0, self.motion_limit)] * self.motion
        sizes = {one.site: one.sizes for one in self.group_sizes} if self.mode == "public-groups" else None
        return Design(self._contrast.column(), tuple(others), self.mode, sizes)

    # What only a site is told

    def covariate_notes(self, covariates: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
        """Yield what is found and expected of a person's covariates, and whether it has to be mended."""
        for column in self.design.columns:
            value = covariates.get(column.name)
            if is_missing(value):
                yield f"no {column.name}", "a value; without one a person counts as zero", False
            elif not np.isfinite(column.encode(value)).all():
                declared = " or ".join(column.levels) or "a number"
                yield f"{column.name} {str(value)[:40]!r}", f"{declared}, as the study declares", True
            elif column.kind == "number" and not column.low <= float(cast(Any, value)) <= column.high:
                bounds = f"{column.low:g} to {column.high:g}, to which others are clipped"
                yield f"{column.name} {float(cast(Any, value)):g}", bounds, False

    def site_notes(self, people: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield what is found and expected of the people of a site together; nobody else is told."""
        counts = Counter(str(row[self.contrast]) for row in people if not is_missing(row.get(self.contrast)))
        if len(counts) == 1:
            yield f"{self.contrast} is the same for everybody", "several; the site says nothing about it"
        elif self._contrast.levels and 1 in counts.values():
            yield f"a group of {self.contrast} with one person", "more; the site says little about it"

    # In words

    @property
    def contrast_words(self) -> str:
        """What is compared: the second level against the first, or one unit more of a number."""
        if self._contrast.levels:
            return f"{self._contrast.levels[1]} against {self._contrast.levels[0]}"
        return f"per unit of {self.contrast}"

    @property
    def range_words(self) -> str:
        """Between what a plan looks for differences: the groups, or the ends of the range."""
        low, high = self._contrast.levels or (f"{end:g}" for end in self._contrast.range or ())
        return f"{self.contrast} {low} and {high}"

    def vector_names(self, setting: Setting) -> tuple[str, ...]:
        """Return what the numbers are called; effects are in their own units, not standardised ones."""
        return msgspec.structs.replace(self, center=(), scale=())._plain_names(setting)

    def _plain_names(self, setting: Setting) -> tuple[str, ...]:
        return super().vector_names(setting)

    def pair_names(self, setting: Setting) -> tuple[str, ...]:
        """Return what the outcomes are between: networks or groups of them; nothing for other outcomes."""
        if self.values == "blocks":
            return tuple(dict.fromkeys(self.block_groups(setting)))
        return self.course_names(setting) if self.values.endswith("connectivity") else ()

    def summary(self, setting: Setting) -> str:
        """Return in few words what is computed."""
        what = "differ between" if self._contrast.levels else "go with"
        whom = " and ".join(self._contrast.levels) or self.contrast
        return f"How {counted(self.vector(setting).size, 'number')} per person ({self.values}) {what} {whom}"

    def words(self, setting: Setting) -> list[str]:
        """Return what is computed in sentences, and whether who is in which group is protected."""
        others = [column.words for column in self.columns if column.name != self.contrast]
        others += [f"motion in the scanner (0 to {self.motion_limit:g} mm)"] * self.motion
        said = [
            f"{self.summary(setting)}.",
            self.person_words(setting),
            f"People are compared by the column {self._contrast.words} of participants.tsv; differences "
            "between sites are taken out"
            + (f", and accounted for are {', '.join(others)}. " if others else ". ")
            + _MISSING,
            f"Centre and scale of the numbers are public, {_ORIGINS[self.origin]}.",
            *["It is exploratory: what is compared was not fixed before anything was known of these people."]
            * self.exploratory,
        ]
        if self.mode == "private":
            return [*said, "Who is in which group is protected like everything else about a person."]
        return [
            *said,
            "WHO IS IN WHICH GROUP IS NOT PROTECTED: the number of people in each group is public for every "
            "site. Everything else about a person is protected.",
        ]

    def article(self, setting: Setting) -> str:
        """Return it as part of a sentence."""
        adjusted = [column.name for column in self.columns if column.name != self.contrast]
        adjusted = ["site", *adjusted, *["mean framewise displacement"] * self.motion]
        listed = ", ".join(adjusted[:-1]) + (" and " if len(adjusted) > 1 else "") + adjusted[-1]
        return (
            f"{counted(self.vector(setting).size, 'outcome')} per participant ({self.values}) were regressed "
            f"on {self.contrast}, adjusted for {listed}{' (exploratory)' * self.exploratory}"
        )

    # Computed

    def standard(self, setting: Setting) -> Standard:
        """Return the public centre, scale and clip."""
        vector = self.vector(setting)
        clip = self.clip or default_clip(vector.size)
        if self.origin == "theory" and vector.outcome is not None:
            theory = from_theory(vector.outcome, setting.scan_length)
            return Standard(theory.center, theory.scale, clip, theory.origin)
        return Standard(np.array(self.center), np.array(self.scale), clip, _ORIGINS[self.origin])

    def comparison(self, setting: Setting) -> GroupComparisonAnalysis:
        """Return the comparison of rows; what is released, and how sites weigh, follow from the noise."""
        standard, noise = self.standard(setting), _ShareOfNoise(setting.noise)
        plain = GroupComparisonAnalysis(
            self.design,
            tuple(map(float, standard.scale)),
            dict(setting.sites),
            standard.clip,
            self.vector_names(setting),
        )
        return tuned(plain, noise)

    def detectable(self, setting: Setting) -> list[Detectable]:
        """Return which differences of the outcomes the study can find, with the planned noise and without."""
        comparison, noise = self.comparison(setting), _ShareOfNoise(setting.noise)
        variance = _GROUPS if self._contrast.levels else _EVENLY
        # From one group, or end of a range, to the other, in outcomes that are not clipped.
        factor = 2 / attenuation(comparison.size, comparison.bound)

        def smallest(noise: Noise, n_tests: int) -> float:
            alpha = _LEVEL / n_tests
            return factor * minimum_detectable_effect(
                comparison, noise, POWER, alpha, group_variance=variance
            )

        return [
            Detectable(
                contrast=self.range_words,
                n_outcomes=comparison.size,
                single=smallest(noise, 1),
                among_all=smallest(noise, comparison.size),
                without_privacy=smallest(_ShareOfNoise(0.0), 1),
            )
        ]

    def open(self, setting: Setting) -> Analysis[Any]:
        """Return the comparison of standardised outcomes."""
        standard, comparison = self.standard(setting), self.comparison(setting)
        scaled = replace(
            self.vector(setting),
            center=tuple(map(float, standard.center)),
            scale=tuple(map(float, standard.scale)),
        )
        return OfScans(
            comparison,
            scaled,
            setting.n_features,
            longest_scan(setting.scan_length),
            self.networks or "",
            beside=DesignNumbers(comparison, self.motion),
        )
