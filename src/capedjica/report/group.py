"""The report of an analysis for everybody: made from what was published, and from nothing else."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.method import Released
from capedjica.algorithms.reliability import STABLE
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import PrivacyStatement, round_up
from capedjica.report import accounts, charts, slices
from capedjica.report.brain import SLICES, Peak
from capedjica.report.downloads import MOST_BYTES, Download, Figure, address, png, table
from capedjica.report.methods import paragraph, references
from capedjica.report.page import render
from capedjica.report.viewer import volumes

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

FloatArray = NDArray[np.float64]
METHODS: Final = {
    "subject": "the default method: one short vector per person and release",
    "paper": "the paper's method: capePCA, then capeDJICA",
    "djica": "decentralized joint ICA, not private",
    "dp-djica": "DP-djICA: Laplace noise on every gradient",
}
# Releases that are made again and again until the networks stand.
_ITERATED: Final = ("rotation", "gradients of W and b")
_FEATURES_LISTED: Final = 10
_PEAKS_LISTED: Final = 6


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """What was published about an analysis.

    Attributes
    ----------
    title, method, version : str
        What it is about, its method, and the version of capedjica that ran it.
    maps : array (R, D)
        The networks, each with 1 as its largest absolute value.
    stability : array (R,), optional
        Of each map.
    contract : Contract
        What all parties agreed on.
    privacy : PrivacyStatement
        What was guaranteed and spent.
    released : sequence of Released
        The means; none where they are not at hand.
    n_iter : int
        Iterations made.
    image : Nifti1Image, optional
        The maps in the space of a brain, 4-D.
    image_shape : pair of int, optional
        Height and width where features are pixels.
    peaks : sequence of Peak
        Where the maps of an image are high.
    preparation : sequence of str
        What sites make of scans, in sentences.
    prepared : str
        The same as one sentence for an article.
    paper_says : dict
        Further figures by the paper's formulas, by their names.
    origin : dict
        Versions, hashes and dates, by their names.
    """

    title: str
    method: str
    version: str
    maps: FloatArray
    stability: FloatArray | None
    contract: Contract
    privacy: PrivacyStatement
    n_iter: int
    released: Sequence[Released] = ()
    image: Nifti1Image | None = None
    image_shape: tuple[int, int] | None = None
    peaks: Sequence[Peak] = ()
    preparation: Sequence[str] = ()
    prepared: str = ""
    paper_says: Mapping[str, float] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def private(self) -> bool:
        """Whether there is a guarantee."""
        return self.privacy.secure and self.privacy.epsilon < math.inf

    def faded(self, number: int) -> bool:
        """Whether a map may be noise."""
        return self.stability is not None and bool(self.stability[number] < STABLE)


@dataclass(frozen=True)
class Component:
    """One map as it is shown."""

    number: int
    stability: float | None
    stable: bool
    figure: Figure
    peaks: tuple[Peak, ...]
    features: tuple[tuple[int, float], ...]


def group_page(findings: Findings) -> str:
    """Return the page."""
    brain = findings.image is not None
    return render(
        "group.html.jinja",
        ("viewer.js",) if brain else (),
        title=findings.title,
        findings=findings,
        method=METHODS[findings.method],
        components=components(findings),
        threshold=STABLE,
        stability=_stability(findings),
        volumes=_volumes(findings),
        maps=maps_file(findings),
        convergence=_convergence(findings),
        privacy=_privacy(findings),
        sites=accounts.site_rows(findings.contract, findings.privacy),
        releases=accounts.release_rows(findings.contract, findings.privacy),
        paragraph=paragraph(findings),
        references=references(findings),
    )


# Maps


def components(findings: Findings) -> list[Component]:
    """Return every map as it is shown."""
    figures = map_figures(findings)
    return [
        Component(
            number=number,
            stability=None if findings.stability is None else float(findings.stability[number - 1]),
            stable=not findings.faded(number - 1),
            figure=figure,
            peaks=tuple(peak for peak in findings.peaks if peak.component == number)[:_PEAKS_LISTED],
            features=() if _has_places(findings) else _highest(findings.maps[number - 1]),
        )
        for number, figure in enumerate(figures, start=1)
    ]


def _has_places(findings: Findings) -> bool:
    return findings.image is not None or findings.image_shape is not None


def _highest(values: FloatArray) -> tuple[tuple[int, float], ...]:
    order = np.argsort(-np.abs(values), kind="stable")[:_FEATURES_LISTED]
    return tuple((int(index) + 1, float(values[index])) for index in order)


def map_figures(findings: Findings) -> list[Figure]:
    """Return a picture of every map: slices of a brain, a square of pixels, or a profile of features."""
    if findings.image is not None:
        return [_slices(findings, number, cut) for number, cut in enumerate(slices.axial(findings.image))]
    draw = _profile if findings.image_shape is None else _square
    return [draw(findings, number) for number in range(len(findings.maps))]


def _slices(findings: Findings, number: int, cut: FloatArray) -> Figure:
    peaks = [peak for peak in findings.peaks if peak.component == number + 1]
    highest = "; ".join(f"({p.x:g}, {p.y:g}, {p.z:g}) {p.region}".strip() for p in peaks[:3])
    heights = ", ".join(map(str, SLICES))
    return Figure(
        alt=f"Map {number + 1} on {len(SLICES)} axial slices of a brain, at z = {heights} mm."
        + (f" It is highest at x, y, z in mm: {highest}." if peaks else ""),
        picture=png(slices.over_brain(cut, findings.faded(number))),
        marks=tuple(f"z = {height}" for height in SLICES),
        numbers=table(
            f"map-{number + 1:02d}-peaks.csv", [one.name for one in fields(Peak)], [astuple(p) for p in peaks]
        ),
    )


def _square(findings: Findings, number: int) -> Figure:
    assert findings.image_shape is not None
    values = findings.maps[number].reshape(findings.image_shape)
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    return Figure(
        alt=f"Map {number + 1} as an image of {values.shape[0]} by {values.shape[1]} pixels; it is highest "
        f"in row {row + 1} from the top, column {column + 1} from the left.",
        picture=png(slices.square(values, findings.faded(number), 1.0)),
        numbers=table(
            f"map-{number + 1:02d}.csv", [str(i + 1) for i in range(values.shape[1])], values.tolist()
        ),
    )


def _profile(findings: Findings, number: int) -> Figure:
    values = findings.maps[number]
    highest = ", ".join(str(feature) for feature, _ in _highest(values)[:3])
    rows = [(index + 1, float(value)) for index, value in enumerate(values)]
    return Figure(
        alt=f"Map {number + 1} as one number for each of {len(values):,} features; it is highest at features "
        f"{highest}.",
        drawing=charts.profile(values, "feature", "value", findings.faded(number)),
        numbers=table(f"map-{number + 1:02d}.csv", ["feature", "value"], rows),
    )


def _volumes(findings: Findings) -> str:
    """Return what the viewer needs as JSON, empty where there is no brain."""
    if findings.image is None:
        return ""
    names = [f"Map {number}" for number in range(1, len(findings.maps) + 1)]
    return json.dumps(volumes(findings.image, names), separators=(",", ":"))


def maps_file(findings: Findings) -> Download | None:
    """Return all maps in one file, if it is small enough to be part of a page."""
    if findings.image is None:
        columns = [f"map {number}" for number in range(1, len(findings.maps) + 1)]
        found = table("maps.csv", columns, findings.maps.T.tolist())
    else:
        found = Download("maps.nii.gz", address(_nifti(findings.image), "application/gzip"))
    return found if len(found.address) < MOST_BYTES else None


def _nifti(image: Nifti1Image) -> bytes:
    """Return an image with 16 bits per value, which leaves an error below 2e-5."""
    small = type(image)(np.asarray(image.dataobj, dtype=np.float32), image.affine)
    small.set_data_dtype(np.int16)  # type: ignore[no-untyped-call]
    return gzip.compress(small.to_bytes(), mtime=0)


# Charts


def _stability(findings: Findings) -> Figure | None:
    if findings.stability is None:
        return None
    values = [float(value) for value in findings.stability]
    stable = sum(value >= STABLE for value in values)
    numbers = [str(number) for number in range(1, len(values) + 1)]
    return Figure(
        alt=f"Stability of each of the {len(values)} maps, from 0 to 1: "
        + ", ".join(f"map {number} {value:.2f}" for number, value in zip(numbers, values, strict=True))
        + ".",
        caption=f"{stable} of {len(values)} maps are at or above {STABLE:g} (dashed). Hollow bars may be "
        "noise.",
        drawing=charts.bars(numbers, values, "stability", STABLE),
        numbers=table("stability.csv", ["map", "stability"], list(enumerate(values, start=1))),
    )


def _convergence(findings: Findings) -> Figure | None:
    """Show how long the mean step of each iteration was, beside the length of its noise alone."""
    labels = [stage.query.label for stage in findings.contract.stages]
    made = [one for one in findings.released if labels[one.stage] in _ITERATED]
    if not made:
        return None
    length = [float(np.linalg.norm(one.value)) for one in made]
    noise = [one.noise * math.sqrt(one.value.size) for one in made]
    iterations = list(range(1, len(made) + 1))
    curves: dict[str, Sequence[float]] = {"length of the mean": length}
    if any(noise):
        curves["length of its noise alone"] = noise
    return Figure(
        alt=f"Length of the mean that was published in each of {len(made)} iterations, from {length[0]:.3g} "
        f"to {length[-1]:.3g}; its noise alone has a length of about {noise[-1]:.3g} at the end.",
        caption="Where both lines meet, what is left of the step is noise: more iterations would not help.",
        drawing=charts.lines(iterations, curves, "iteration", "length"),
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
        return {"private": False, "statement": str(privacy).splitlines()[0]}
    totals = accounts.side_by_side(privacy)
    return {
        "private": True,
        "statement": str(privacy),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "mu": privacy.mu,
        "spent": privacy.spent_epsilon,
        "from_whom": accounts.from_whom(contract),
        "assumptions": accounts.assumptions(contract),
        "odds": accounts.odds(privacy.epsilon, privacy.delta),
        "guess": round_up(100 * accounts.best_guess(privacy.mu, privacy.delta), 3),
        "accountants": {accounts.NAMES[name]: value for name, value in totals.items()},
        "chart": _accountants(totals),
        "paper": {
            accounts.PAPER_NAMES[name]: value
            for name, value in accounts.by_the_paper(contract, privacy).items()
        },
        "paper_masks": contract.mask == "paper",
    }


def _accountants(totals: Mapping[str, float]) -> Figure:
    named = {accounts.NAMES[name]: value for name, value in totals.items()}
    return Figure(
        alt="Epsilon of the same releases by accountant: "
        + ", ".join(f"{name} {round_up(value)}" for name, value in named.items())
        + ".",
        caption="The same releases, added up in five ways. The exact account is the one that counts.",
        drawing=charts.ranking(named, "epsilon"),
        numbers=table("accountants.csv", ["accountant", "epsilon"], list(named.items())),
    )
