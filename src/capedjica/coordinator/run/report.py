"""Build reports from the folder of a run, and from nothing else."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from capedjica.algorithms.analysis import ReleasedMean, ResultTable
from capedjica.algorithms.ica.maps.denoising import denoised_words, prior_words
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.coordinator.planning.paper_accounts import paper_says
from capedjica.coordinator.planning.plan_text import PAPER
from capedjica.coordinator.run.comparison import ComparedRun, compare_runs
from capedjica.coordinator.run.journal import read_journal
from capedjica.coordinator.run.labelling import placed_features, read_labels
from capedjica.coordinator.run.results import Provenance, TableFile, approximate, picture
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.data.features import FeatureTable
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract
from capedjica.metrics import match_components
from capedjica.privacy.neighbour import Neighbour
from capedjica.privacy.statement import Charge, PrivacyStatement
from capedjica.report.comparison import Entry, comparison_page
from capedjica.report.data_location import whereabouts_of
from capedjica.report.findings import Comparison, effects_on_maps, findings_section
from capedjica.report.group import Findings, group_page
from capedjica.report.labels import MapLabels
from capedjica.report.maps import MapSet
from capedjica.report.page import HtmlReport
from capedjica.report.pictures.brain import Peak, find_peaks
from capedjica.report.sections import Section, section
from capedjica.study.analyses.group_comparison import GroupComparisonTable
from capedjica.study.approval_text import feature_words
from capedjica.study.planned_releases import planned_releases
from capedjica.study.reliability_file import n_maps, read_reliability
from capedjica.study.study_file import Study, StudyStep
from capedjica.tools.arrays import FloatArray, read_matrix

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

REPORT: Final = "report.html"
# The numbers of a group comparison, by the columns of its table.
_COMPARED: Final = {
    "effects": "effect",
    "standard_errors": "standard error",
    "noise": "of it by privacy noise",
    "low": "low",
    "high": "high",
    "p_values": "p",
    "q_values": "q",
}


class SiteCost(msgspec.Struct):
    """Cost of a study to the participants of one site, in a ``privacy.json``.

    Attributes
    ----------
    epsilon : float
        The guarantee: the largest cost agreed; null without protection.
    spent_mu_squared : float
        Sum of the charges so far, in mu squared; null without protection.
    """

    epsilon: float | None
    spent_mu_squared: float | None


class ReleaseCost(msgspec.Struct):
    """One release, in a ``privacy.json``.

    Attributes
    ----------
    label : str
        Content of the release.
    mu : dict
        Cost at each site; null without protection.
    noise : float
        Standard deviation of the noise on each coordinate of the mean.
    given_up : bool
        Whether the release was abandoned; it stays charged.
    """

    label: str
    mu: dict[str, float | None]
    noise: float
    given_up: bool


class PrivacyFile(msgspec.Struct):
    """The content of a ``privacy.json`` that the report needs; the file has further keys in words.

    Attributes
    ----------
    private : bool
        Whether the results are differentially private.
    epsilon, delta, mu : float
        The guarantee for the participants of every site; null without protection.
    mechanism : str
        Mechanism of ``study.toml``.
    n_sites, n_colluding : int
        Number of sites, and of those that may collude.
    sites : dict
        Cost to the participants of each site.
    releases : list
        Every release, in order.
    lost : list of str
        Sites that were lost during the run.
    neighbour : str
        What the guarantee protects: all data of a subject, or one sample.
    units_per_subject : int
        Largest number of samples of a subject, if one sample is protected.
    not_covered : list of str
        What the guarantee does not cover, in sentences.
    carriers : dict
        How each site's carrier is confined.
    """

    private: bool
    epsilon: float | None
    delta: float
    mu: float | None
    mechanism: str
    n_sites: int
    n_colluding: int
    sites: dict[str, SiteCost]
    releases: list[ReleaseCost]
    lost: list[str] = []
    # Older files do not name the neighbour relation, as there was only one.
    neighbour: Neighbour = "subject"
    units_per_subject: int = 1
    not_covered: list[str] = []
    carriers: dict[str, str] = {}

    def statement(self, contract: Contract) -> PrivacyStatement:
        """Return the privacy statement, with infinity for null.

        The contract determines whether noise was seeded, and which site was used alone.
        """
        return PrivacyStatement(
            nominal_epsilon=_known(self.epsilon),
            delta=self.delta,
            nominal_mu=_known(self.mu),
            nominal_releases=tuple(
                Charge(one.label, {name: _known(mu) for name, mu in one.mu.items()}, one.noise, one.given_up)
                for one in self.releases
            ),
            nominal_site_epsilon=dict.fromkeys(self.lost, _known(self.epsilon))
            | {name: _known(site.epsilon) for name, site in self.sites.items()},
            mechanism=self.mechanism,
            n_sites=self.n_sites,
            n_colluding=self.n_colluding,
            secure=not contract.insecure_noise,
            nominal_charged={name: _known(site.spent_mu_squared) for name, site in self.sites.items()},
            neighbour=self.neighbour,
            units_per_subject=self.units_per_subject,
            alone=contract.alone,
            not_covered=tuple(self.not_covered),
        )


# Confinement of the program with network access, which separates it from a site's files.
BOUNDARIES: Final = {
    "embedded": "none needed: all in one process, without a network",
    "user": "separate user account",
    "landlock": "Landlock",
    "none": "NONE: unconfined",
}


def run_report(run: Path, regions: Path | None = None) -> HtmlReport:
    """Return the report of a complete run, from its folder alone.

    ``regions`` is an image of the regions of the tables' columns, if the study does not have one.
    """
    return HtmlReport(group_page(run_findings(run, regions)))


def run_findings(run: Path, regions: Path | None = None) -> Findings:
    """Return the published results of a complete run."""
    folder = RunFolder(run)
    if not folder.holds(["study.toml", "privacy.json", "provenance.json"]):
        inside = f" such as {run / 'run'}," if RunFolder(run / "run").holds(["privacy.json"]) else ""
        raise InputError(
            f"{run} is not the folder of a complete run; give such a folder,{inside} or an unpacked "
            "results.zip"
        )
    study = Study.load(run)
    missing = [name for step in study.steps if not folder.holds([name := _first_file(study, step)])]
    if missing:
        raise InputError(
            f"{run} is not the folder of a complete run: {missing[0]} is missing; run the study again"
        )
    provenance = folder.read_json("provenance.json", Provenance)
    cost = folder.read_json("privacy.json", PrivacyFile)
    networks, table = study.networks, study.content.networks
    return Findings(
        title=study.content.title,
        version=provenance.capedjica,
        method="" if table is None else table.method,
        tables=[] if networks is None else result_tables(folder, study, networks),
        template="" if table is None else table.template_words,
        template_source="" if table is None else table.template_source or table.template_origin or "",
        maps=None if networks is None else _with_denoised(folder, study, networks, regions),
        denoised=_denoised_words(folder, study),
        sections=[_section(folder, study, step) for step in study.steps if step is not networks],
        contract=study.contract,
        privacy=cost.statement(study.contract),
        where=whereabouts_of(cost.carriers),
        unconfined=tuple(name for name, kind in cost.carriers.items() if kind == "none"),
        # For several analyses this would be a meaningless sum.
        n_iter=provenance.n_iter if len(study.steps) == 1 else 0,
        released=_released(folder, study),
        preparation=feature_words(study.content.features),
        prepared=_prepared(study.content.features),
        paper_says=_paper_says(study),
        origin=_origin(study, provenance, cost.carriers),
    )


def _denoised_words(folder: RunFolder, study: Study) -> str:
    step, table = study.networks, study.content.networks
    if step is None or table is None:
        return ""
    return denoised_words(table.template or "") if folder.holds([_denoised_file(study, step)]) else ""


def _denoised_file(study: Study, step: StudyStep) -> str:
    return str(Path(study.results_folder(step)) / "maps_denoised.npy")


def _with_denoised(folder: RunFolder, study: Study, step: StudyStep, regions: Path | None) -> MapSet:
    """Return the networks, with their denoised maps where the run wrote these."""
    maps, name = _maps(folder, study, step, regions), _denoised_file(study, step)
    if not folder.holds([name]):
        return maps
    values = folder.read_array(name)
    if values.shape != maps.values.shape:
        raise InputError(
            f"{folder.path / name} has shape {values.shape}, expected that of maps.npy, {maps.values.shape}; "
            "use the files of one run"
        )
    image = None if maps.image is None else picture(placed_features(study, regions), values)
    table = study.content.networks
    towards = prior_words("" if table is None else table.template or "")
    return replace(maps, denoised=MapSet(values, image=image), denoised_towards=towards)


def _first_file(study: Study, step: StudyStep) -> str:
    """Return a file that every complete analysis has."""
    maps = step.table.kind in ("ica", "pca") and study.content.features.kind != "table"
    name = "maps.npy" if maps else "tables.json"
    return str(Path(study.results_folder(step)) / name)


def _section(folder: RunFolder, study: Study, step: StudyStep) -> Section:
    if isinstance(step.table, GroupComparisonTable):
        return findings_section(_comparison(folder, study, step, step.table))
    place = Path(study.results_folder(step))
    shown = folder.holds([str(place / "maps.npy")])
    return section(
        step.name,
        step.table.summary(step.setting),
        step.table.article(step.setting),
        result_tables(folder, study, step),
        _maps(folder, study, step) if shown else None,
    )


def _comparison(folder: RunFolder, study: Study, step: StudyStep, table: GroupComparisonTable) -> Comparison:
    """Return the results of a group comparison from its tables."""
    (effects,) = result_tables(folder, study, step)
    found = {
        name: np.array([row[effects.columns.index(column)] for row in effects.rows], dtype=np.float64)
        for name, column in _COMPARED.items()
    }
    return Comparison(
        name=step.name,
        summary=table.summary(step.setting),
        article=table.article(step.setting),
        outcome=table.values,
        contrast=table.contrast_words,
        names=[str(row[0]) for row in effects.rows],
        courses=table.pair_names(step.setting),
        on_maps=_on_maps(folder, study, table, found["effects"]),
        public_groups=table.mode == "public-groups",
        exploratory=table.exploratory,
        halved=bool(table.design.contrast.levels),
        table=effects,
        **found,
    )


def _on_maps(
    folder: RunFolder, study: Study, table: GroupComparisonTable, effects: FloatArray
) -> MapSet | None:
    """Return effects on single networks as a map; None if outcomes are not of single networks."""
    networks = next((step for step in study.steps if step.name == table.networks), None)
    if networks is None:
        return None
    maps = _maps(folder, study, networks)
    if len(maps) != len(effects) or not np.isfinite(effects).all():
        return None
    shown = effects_on_maps(effects, maps.values)
    return replace(_placed(shown, maps, study), names=(f"effect on {table.values}",))


def result_tables(folder: RunFolder, study: Study, step: StudyStep) -> list[ResultTable]:
    """Return the tables of one analysis; numbers that could not be estimated are NaN."""
    name = str(Path(study.results_folder(step)) / "tables.json")
    if not folder.holds([name]):
        return []
    found = folder.read_json(name, list[TableFile])
    return [
        ResultTable(
            one.name,
            one.caption,
            one.columns,
            [[math.nan if cell is None else cell for cell in row] for row in one.rows],
            one.chart,
        )
        for one in found
    ]


def _known(value: float | None) -> float:
    return math.inf if value is None else value


def _maps(folder: RunFolder, study: Study, step: StudyStep, regions: Path | None = None) -> MapSet:
    place, features = Path(study.results_folder(step)), study.content.features
    name = str(place / "maps.npy")
    values = folder.read_array(name)
    reliability = read_reliability(folder.path, study, step)
    expected = (n_maps(step.table, len(values)), step.setting.n_features)
    if values.shape != expected:
        raise InputError(
            f"{folder.path / name} has shape {values.shape}, expected {expected} from its study; restore the "
            "file or run the study again"
        )
    placed = placed_features(study, regions)
    image = picture(placed, values)
    labels = read_labels(folder, study, step)
    if labels is not None and len(labels.maps) != len(values):
        raise InputError(
            f"{folder.path / place / 'labels.json'} has {len(labels.maps)} labels, expected one for each of "
            f"{len(values)} maps; remove it and label the maps again"
        )
    return MapSet(
        values,
        reliability.stability,
        image,
        features.image_shape,
        _peaks_of(folder.path / place / "peaks.csv", image, labels),
        getattr(step.table, "template_names", ()),
        reliability.noisy,
        labels,
        reliability.of_difference,
        approximate=approximate(placed),
    )


def _peaks_of(table: Path, image: Nifti1Image | None, labels: MapLabels | None) -> Sequence[Peak]:
    """Return the peaks of maps, with the study's region names, or else those of the labels."""
    own = _peaks(table)
    if image is None or any(peak.region for peak in own):
        return own
    return labels.peaks if labels is not None and labels.peaks else own or find_peaks(image)


def _released(folder: RunFolder, study: Study) -> list[ReleasedMean]:
    """Return the released means; empty for an unpacked results.zip, which does not contain them."""
    return read_journal(folder.journal_path, study.contract) if folder.journal_path.exists() else []


def _peaks(path: Path) -> list[Peak]:
    """Read a table of peaks; empty if the file does not exist."""
    if not path.exists():
        return []
    kinds = {"component": int, "cluster_voxels": int, "region": str}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                Peak(**{one.name: kinds.get(one.name, float)(row[one.name]) for one in fields(Peak)})
                for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        raise InputError(
            f"{path} is not a valid table of peaks; restore the file or run the study again"
        ) from None


def _prepared(features: FeatureTable) -> str:
    """Return a sentence about the preprocessing of scans, for an article."""
    done = {
        "smoothing_fwhm": "smoothed ({:g} mm full width at half maximum)",
        "detrend": "linearly detrended",
        "confounds": "corrected by regression of fMRIPrep confounds ({})",
        "high_pass": "high-pass filtered at {:g} Hz",
        "low_pass": "low-pass filtered at {:g} Hz",
        "standardize": "standardised feature by feature",
    }
    n_features = features.n_features or 0
    made = {
        "columns": f"given as time courses of {n_features:,} features",
        "atlas": f"averaged within the {n_features:,} regions of an atlas ({features.atlas})",
        "voxels": f"reduced to the {n_features:,} voxels of a brain mask",
    }
    if features.kind == "table":
        return f"Each participant contributed {len(features.columns)} numbers from a table."
    table = msgspec.to_builtins(features) | {"confounds": ", ".join(features.confounds)}
    steps = [words.format(table[key]) for key, words in done.items() if table[key]]
    space = f" in {features.space} space" if features.space else ""
    done_to_each = ", ".join([*steps, made[features.kind]])
    return f"Scans{space} were {done_to_each}; each scan was processed separately."


def _paper_says(study: Study) -> dict[str, float]:
    """Return epsilon by the paper's formulas, if the paper's method was used."""
    if not isinstance(study.analysis, PaperMethod) or study.contract.mechanism != "cape":
        return {}
    said = paper_says(study.contract, study.analysis, planned_releases(study.contract))
    return {words: said[name] for name, words in PAPER.items()}


def _origin(study: Study, provenance: Provenance, carriers: Mapping[str, str]) -> dict[str, str]:
    boundaries = {f"boundary at {name}": BOUNDARIES.get(kind, kind) for name, kind in carriers.items()}
    hashes = {f"SHA-256 of {name}": digest for name, digest in provenance.files.items()}
    return {
        "study": study.hash.hex(),
        "contract": provenance.contract,
        "started": provenance.started,
        "resumed": f"{provenance.resumed} times",
        "capedjica": provenance.capedjica,
        "Python": provenance.python,
        **boundaries,
        **provenance.libraries,
        **hashes,
    }


# Several runs


def comparison_report(runs: Sequence[Path], truth: Path | None = None) -> HtmlReport:
    """Return a report comparing complete runs with the true mixing matrix or with the first run."""
    compared = compare_runs(runs, truth)
    found = [run_findings(run) for run in runs]
    true_maps = None if truth is None else np.ascontiguousarray(read_matrix(truth).T)
    maps = [_networks(one, run) for one, run in zip(found, runs, strict=True)]
    reference = maps[0].values if true_maps is None else true_maps
    entries = [_entry(one, own, reference, Path(one.run)) for one, own in zip(compared, maps, strict=True)]
    if true_maps is None:
        return HtmlReport(comparison_page(entries, None))
    scaled = true_maps / np.abs(true_maps).max(axis=1, keepdims=True)
    return HtmlReport(comparison_page(entries, _placed(scaled, maps[0], Study.load(runs[0]))))


def _networks(findings: Findings, run: Path) -> MapSet:
    if findings.maps is None:
        raise InputError(f"{run} has no brain networks to compare: its analyses are of other kinds; omit it")
    return findings.maps


def _entry(one: ComparedRun, maps: MapSet, reference: FloatArray, run: Path) -> Entry:
    matching = match_components(maps.values, reference)
    values = maps.values[matching.permutation] * matching.signs[:, np.newaxis]
    stability = maps.stability
    stable = None if stability is None else stability[matching.permutation]
    return Entry(
        name=one.run,
        title=one.title,
        method=one.method,
        mechanism=one.mechanism,
        epsilon=one.epsilon if one.private else None,
        gain_index=one.gain_index,
        maps=replace(
            _placed(values, maps, Study.load(run)),
            stability=stable,
            noisy=maps.noisy,
            of_difference=maps.of_difference,
        ),
        correlations=matching.correlations,
        seconds=one.seconds,
    )


def _placed(values: FloatArray, like: MapSet, study: Study) -> MapSet:
    """Return other values as maps of the same features."""
    return MapSet(values, image=picture(study.features, values), image_shape=like.image_shape)
