"""Public report of an analysis, computed only from published results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from capedjica.algorithms.analysis import ReleasedMean, ResultTable
from capedjica.algorithms.reliability import GRADES, RELIABLE, rounded
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import PrivacyStatement
from capedjica.report import accounts
from capedjica.report.data_location import AT_SITES, Whereabouts, who
from capedjica.report.downloads import Figure, table
from capedjica.report.labels import label_table
from capedjica.report.lay_summary import in_short
from capedjica.report.maps import MapSet, components, maps_file, viewer_data
from capedjica.report.methods import paragraph, references
from capedjica.report.page import render
from capedjica.report.pictures import charts
from capedjica.report.sections import Section, shown_table

_METHOD_NAMES: Final = {
    "subject": "the default method: one short vector per participant and release",
    "paper": "the paper's method: capePCA, then capeDJICA",
    "template": "the networks of a template",
    "guided": "the guided method: networks of these participants, estimated from a template",
    "spatial": "the spatial method: maximally independent maps",
    "djica": "decentralized joint ICA, not private",
    "dp-djica": "DP-djICA: Laplace noise on every gradient",
}
# Releases that are repeated in every iteration.
_ITERATED: Final = ("rotation", "gradients of W and b")


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """Published results of an analysis.

    Attributes
    ----------
    title, version : str
        Title of the study, and the version of capedjica that ran it.
    contract : Contract
        The terms that all parties agreed on.
    privacy : PrivacyStatement
        The guarantee, and the budget spent.
    n_iter : int
        Number of iterations; 0 if it is not to be shown.
    method : str
        Method by which networks were estimated; empty if there are none.
    maps : MapSet or None
        The networks.
    tables : sequence of ResultTable
        Further results on the networks.
    template : str
        Sentences about the source of the template; empty without one.
    template_source : str
        Short name of the source, for an article.
    denoised : str
        Text on denoised maps; empty if there are none.
    sections : sequence of Section
        Results of other analyses.
    released : sequence of ReleasedMean
        The released means; empty if they are not available.
    preparation : sequence of str
        Sentences about the preprocessing of scans at the sites.
    prepared : str
        The same as one sentence for an article.
    paper_says : dict
        Further epsilons by the paper's formulas, by name.
    origin : dict
        Versions, hashes and dates, by name.
    unconfined : tuple of str
        Sites whose carrier was not confined and so could reach participants' data.
    where : Whereabouts
        Statements about where the data were.
    """

    title: str
    version: str
    contract: Contract
    privacy: PrivacyStatement
    n_iter: int
    method: str = ""
    maps: MapSet | None = None
    tables: Sequence[ResultTable] = ()
    template: str = ""
    template_source: str = "public"
    denoised: str = ""
    sections: Sequence[Section] = ()
    released: Sequence[ReleasedMean] = ()
    preparation: Sequence[str] = ()
    prepared: str = ""
    paper_says: Mapping[str, float] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    unconfined: tuple[str, ...] = ()
    where: Whereabouts = AT_SITES

    @property
    def participants(self) -> dict[str, int]:
        """Number of participants enrolled at each site that took part."""
        people = self.contract.participants
        return {name: number for name, number in people.items() if name not in self.privacy.absent}

    @property
    def who(self) -> str:
        """The participants and their sites in words."""
        return who(self.contract.participants, self.privacy.absent)

    @property
    def private(self) -> bool:
        """Whether there is a privacy guarantee."""
        return self.privacy.private


def group_page(findings: Findings) -> str:
    """Return the report as an HTML page."""
    maps = findings.maps
    return render(
        "group.html.jinja",
        ("viewer.js",) if maps is not None and maps.look == "slices" else (),
        title=findings.title,
        in_short=in_short(findings),
        findings=findings,
        method=_METHOD_NAMES.get(findings.method, ""),
        components=[] if maps is None else components(maps),
        tables=[shown_table(one) for one in (*findings.tables, *_label_tables(maps))],
        grades=GRADES,
        reliability=None if maps is None else maps.reliability,
        stability=None if maps is None else _stability(maps),
        volumes="" if maps is None else viewer_data(maps),
        maps=None if maps is None else maps_file(maps),
        convergence=_convergence(findings),
        privacy=_privacy(findings),
        sites=accounts.site_rows(findings.contract, findings.privacy),
        releases=accounts.release_rows(findings.contract, findings.privacy),
        paragraph=paragraph(findings),
        references=references(findings),
    )


def _label_tables(maps: MapSet | None) -> list[ResultTable]:
    return [] if maps is None or maps.labels is None else [label_table(maps.labels)]


# Charts


def _stability(maps: MapSet) -> Figure | None:
    if maps.stability is None or not maps.noisy:
        return None
    values = [float(value) for value in maps.stability]
    numbers = [str(number) for number in range(1, len(values) + 1)]
    named = [
        [number, *maps.names[number - 1 : number], value] for number, value in enumerate(values, start=1)
    ]
    return Figure(
        alt=f"Stability of each of the {len(values)} maps, from 0 to 1: "
        + ", ".join(f"map {number} {rounded(value)}" for number, value in zip(numbers, values, strict=True))
        + ".",
        caption=f"{maps.reliability.n_reliable} of {len(values)} {_graded(maps)} are at or above "
        f"{RELIABLE:g} (dashed line). Hollow bars are below it and not reliable.",
        drawing=charts.bars(numbers, values, "stability", RELIABLE),
        numbers=table("stability.csv", ["map", *["name"] * bool(maps.names), "stability"], named),
    )


def _graded(maps: MapSet) -> str:
    return "differences from the template" if maps.of_difference else "maps"


def _convergence(findings: Findings) -> Figure | None:
    """Return a chart of the norm of each iteration's released mean, and of the norm of its noise alone."""
    labels = [stage.query.label for stage in findings.contract.stages]
    made = [one for one in findings.released if labels[one.stage].rpartition(": ")[2] in _ITERATED]
    if not made:
        return None
    length = [float(np.linalg.norm(one.value)) for one in made]
    noise = [one.noise * math.sqrt(one.value.size) for one in made]
    iterations = list(range(1, len(made) + 1))
    curves: dict[str, Sequence[float]] = {"norm of the mean": length}
    if any(noise):
        curves["norm of its noise alone"] = noise
    return Figure(
        alt=f"Norm of the mean released in each of {len(made)} iterations, from {length[0]:.3g} "
        f"to {length[-1]:.3g}; the norm of its noise alone is about {noise[-1]:.3g} at the end.",
        caption="Where the two lines meet, the step is only noise: more iterations would not help.",
        drawing=charts.lines(iterations, curves, "iteration", "norm"),
        numbers=table(
            "convergence.csv",
            ["iteration", "mean", "noise"],
            list(zip(iterations, length, noise, strict=True)),
        ),
    )


# Privacy


def _privacy(findings: Findings) -> dict[str, Any]:
    contract, privacy = findings.contract, findings.privacy
    if not findings.private:
        return {"private": False, "guarantee": privacy.guarantee}
    totals = _accountants(findings)
    by_paper = accounts.by_the_paper(contract, privacy)
    return {
        "private": True,
        "statement": str(privacy),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "spent": privacy.spent_epsilon,
        "guarantee": privacy.guarantee,
        "accountants": totals,
        "numbers": table("accountants.csv", ["accountant", "epsilon"], list(totals.items())),
        "paper": {accounts.PAPER_NAMES[name]: value for name, value in by_paper.items()},
        "paper_masks": contract.masking == "paper",
    }


def _accountants(findings: Findings) -> dict[str, float]:
    """Return epsilon by accountant; empty unless all noise was Gaussian."""
    if findings.method == "dp-djica":
        return {}
    totals = accounts.side_by_side(findings.privacy)
    return {accounts.NAMES[name]: value for name, value in totals.items()}
