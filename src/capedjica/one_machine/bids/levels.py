r"""Levels of the BIDS app: ``group`` and ``participant``.

``group`` estimates the networks of all participants of the data set, by the estimator
:class:`~capedjica.CapeDJICA`. This machine holds all scans, so it is a trusted curator: with
``mechanism="pooled"`` it adds the noise once, to the mean over all M participants,

.. math:: \bar x = \frac{1}{M} \sum_{m=1}^M x_m + e, \qquad e \sim N(0, \tau^2 I),

where :math:`\tau` depends on M and not on how participants are divided into sites
(:func:`capedjica.mechanisms.terms.mean_noise`). The estimator requires two sites, so the participants are
divided into halves; neither the mean nor the guarantee depends on the division. The guarantee holds against
anyone who sees only the results.

``participant`` computes time courses, connectivity and maps of each participant from given maps (dual
regression, :mod:`capedjica.algorithms.ica.individual`), and nothing across participants. They are not
private.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.algorithms.reliability import Reliability
from capedjica.coordinator.run.results import SCALE, TEMPLATE_SCALE, privacy_json
from capedjica.data.cache import SeriesCache
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.images import ImageFeatures, new_image
from capedjica.data.participants import People
from capedjica.data.scans import Person, Problem, stem
from capedjica.data.templates import Origin, read_template
from capedjica.errors import InputError
from capedjica.estimators import CapeDJICA
from capedjica.mechanisms.contract import MechanismName
from capedjica.report.derivatives import (
    GROUP,
    INDIVIDUAL,
    File,
    component_columns,
    frame_files,
    maps_files,
    metrics_files,
    named,
    privacy_of,
    shared_entities,
    whole_folder,
    write_files,
)
from capedjica.site.results.individual import SCANS, individual_files, person_label
from capedjica.tools.arrays import Scan
from capedjica.tools.atomic_files import writing

Tick = Callable[[], None]
_README: Final = """\
# Networks of {name}

Written by `capedjica-bids`. `{group}/` and `{group}.html` are results of all participants together, with the
guarantee that their sidecars state. **Folders `sub-*` describe single participants and are not private**: do
not share them with results of the group.
"""


@dataclass(frozen=True)
class App:
    """One invocation of the app.

    Attributes
    ----------
    scans : Path
        Folder of preprocessed scans.
    out : Path
        Data set of results.
    people : sequence of Person
        Participants to analyse.
    table : FeatureTable
        Definition of the features.
    work : Path, optional
        Folder in which extracted series are kept for the next invocation.
    """

    scans: Path
    out: Path
    people: Sequence[Person]
    table: FeatureTable
    work: Path | None = None

    def features(self) -> ImageFeatures:
        """Return the features, from public images alone."""
        found = open_features(self.table, Path(), None)
        assert isinstance(found, ImageFeatures)
        return found

    def series(self, features: ImageFeatures) -> People:
        """Return the series of the participants, each read when it is accessed."""
        cache = None if self.work is None else SeriesCache(self.work / "series")
        return People(self.people, features, cache)

    @property
    def entities(self) -> dict[str, str]:
        """Entities that all recordings have in common, except the participant."""
        paths = [one.path for person in self.people for one in person.recordings]
        return shared_entities(paths, without=("sub", "ses", "run", "res", "desc"))

    def frame(self) -> Iterator[File]:
        """Return the files of the data set of results."""
        name = _name_of(self.scans)
        readme = _README.format(name=name, group=GROUP)
        return frame_files(f"Networks of {name}", readme, {SCANS: self.scans.resolve().as_uri()})

    def write_frame(self) -> None:
        """Create the data set of results with its description; an earlier one stays valid."""
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            write_files(self.out, self.frame())


def _name_of(scans: Path) -> str:
    try:
        content = msgspec.json.decode((scans / "dataset_description.json").read_bytes())
        return str(content["Name"])
    except (OSError, KeyError, TypeError, msgspec.MsgspecError):
        return scans.resolve().name


# Group


@dataclass(frozen=True)
class GroupOptions:
    """Options of the group level.

    Attributes
    ----------
    n_components : int, optional
        Number of networks; by default that of the template.
    epsilon, delta : float
        Total privacy budget; no epsilon for ``mechanism="none"``.
    mechanism : {"pooled", "none"}
        Whether noise is added.
    template, template_names : Path, optional
        Known networks as a starting point, and a table of their names.
    template_origin : str, optional
        Origin of the template, see :class:`~capedjica.CapeDJICA`.
    scan_length : int
        Number of time points of a typical scan.
    memory : float, optional
        Memory that the series may need, in bytes.
    """

    n_components: int | None
    epsilon: float | None
    delta: float
    mechanism: MechanismName
    template: Path | None
    template_names: Path | None
    template_origin: Origin | None
    scan_length: int
    memory: float | None = None


@dataclass(frozen=True)
class GroupResult:
    """What the group level wrote, for the terminal: files, guarantee, warning and unusable participants."""

    names: list[str]
    statement: str
    warning: str
    problems: list[Problem]


def run_group(app: App, options: GroupOptions, tick: Tick = lambda: None) -> GroupResult:
    """Estimate the networks of all participants and write them; ``tick`` is called after each participant."""
    place = app.out / GROUP
    if place.exists():
        raise InputError(
            f"{place} already has results; another private analysis of the same people costs as much again, "
            "and the costs add up. Give another OUT_DIR, or remove this folder"
        )
    if len(app.people) < 2:
        raise InputError(f"{app.scans}: the group level needs at least 2 participants, got {len(app.people)}")
    features = app.features()
    estimator = _estimator(options, features)
    people = app.series(features)
    _check_memory(app, features, options.memory)
    problems = people.check(options.n_components or 2, tick, longest=4 * options.scan_length)
    unusable = {problem.name for problem in problems if problem.fatal}
    if len(unusable) >= len(people) - 1:
        first = next(problem for problem in problems if problem.fatal)
        raise InputError(f"{app.scans}: fewer than 2 participants are usable; the first problem: {first}")
    # An unusable participant contributes zero, as in every study: who is counted is public.
    scans = [_usable(people, index, unusable) for index in range(len(people))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said by the reliability of the maps
        estimator.fit([scans[::2], scans[1::2]])
    reliability = _reliability(estimator)
    files = list(_group_files(app, options, estimator, reliability))
    report = estimator.generate_report(f"Networks of {_name_of(app.scans)}").html
    app.write_frame()
    with whole_folder(place) as draft, writing(place):
        write_files(draft, files)
        write_files(app.out, [(f"{GROUP}.html", report.encode())])
    names = [f"{GROUP}/{name}" for name, _ in files] + [f"{GROUP}.html"]
    return GroupResult(names, str(estimator.privacy_), reliability.banner, problems)


def _usable(people: People, index: int, unusable: set[str]) -> Scan:
    if people.people[index].name in unusable:
        return np.empty((0, people.features.n_features), dtype=np.float32)
    return people[index]


def _check_memory(app: App, features: ImageFeatures, limit: float | None) -> None:
    """Refuse to begin if all series together need more memory than allowed."""
    if limit is None:
        return
    import nibabel

    volumes = 0
    for recording in (one for person in app.people for one in person.recordings):
        try:
            volumes += nibabel.load(recording.path).shape[-1]  # type: ignore[attr-defined]
        except Exception:  # noqa: S112 (an unreadable image is reported with all problems)
            continue
    needed = 4.0 * volumes * features.n_features
    if needed > limit:
        raise InputError(
            f"the series of {len(app.people)} participants need {needed / 2**20:,.0f} MB, but --mem-mb allows"
            f" {limit / 2**20:,.0f}; give larger voxels (--voxel-size) or an atlas (--atlas)"
        )


def _estimator(options: GroupOptions, features: ImageFeatures) -> CapeDJICA:
    return CapeDJICA(
        options.n_components,
        options.epsilon,
        options.delta,
        method="subject" if options.template is None else "guided",
        mechanism=options.mechanism,
        on_bad="zero",
        scan_length=options.scan_length,
        template=options.template,
        template_names=options.template_names,
        template_origin=options.template_origin,
        **_public_image(features),
    )


def _public_image(features: ImageFeatures) -> dict[str, Any]:
    """Return the public image of the features, so that the estimator's maps have positions."""
    n_features = features.n_features
    if features.basis is not None:
        inside = features.image(np.ones((1, n_features)))
        return {"mask_img": new_image(np.asarray(inside.dataobj)[..., 0] != 0, inside.affine)}
    numbered = features.image(np.arange(1.0, n_features + 1)[np.newaxis])
    labels = np.asarray(numbered.dataobj)[..., 0]
    if np.array_equal(np.unique(labels), np.arange(n_features + 1)):
        return {"atlas": new_image(labels.astype(np.int32), numbered.affine)}
    return {"atlas": features.image(np.eye(n_features))}


def _reliability(estimator: CapeDJICA) -> Reliability:
    count = len(estimator.components_)
    noisy, guided = estimator.mechanism != "none", estimator.template is not None
    return Reliability(count, estimator.stability_, noisy, guided)


def _group_files(
    app: App, options: GroupOptions, estimator: CapeDJICA, reliability: Reliability
) -> Iterator[File]:
    """Yield the files in the folder of the group."""
    entities = app.entities | {"desc": "ICA"}
    about: dict[str, Any] = {
        "Participants": len(app.people),
        "Method": estimator.method,
        "Features": _settings(app.table),
        "Privacy": privacy_of(privacy_json(estimator.privacy_)),
    }
    if reliability.banner:
        about["Warning"] = reliability.banner
    order = SCALE if options.template is None else TEMPLATE_SCALE
    for values, more, words in (
        (estimator.components_, "", "Maps of the group, one per component"),
        (estimator.components_denoised_, "Denoised", "Maps with reduced noise; use the others for inference"),
    ):
        if values is not None:
            name = named(entities | {"desc": f"ICA{more}"}, "components")
            said = {"Description": f"{words}. {order.capitalize()}.", **about}
            yield from maps_files(name, values, estimator.image_of(values), said)
    name = named(entities | {"space": ""}, "metrics")
    yield from metrics_files(name, reliability, estimator.names_, about)


def _settings(table: FeatureTable) -> dict[str, Any]:
    """Return the definition of the features, without paths of this machine."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(table))
    for key in ("atlas", "mask"):
        plain[key] = None if plain[key] is None else Path(plain[key]).name
    return {key: value for key, value in plain.items() if value not in (None, [], False)}


# Participants


@dataclass(frozen=True)
class ParticipantResult:
    """What the participant level wrote: the number of participants, and the problems of the others."""

    written: int
    problems: list[Problem]


def group_maps(app: App) -> Path:
    """Return the image of the group level in the same data set; its features must be the same."""
    found = sorted((app.out / GROUP).glob("*desc-ICA_components.nii.gz"))
    if not found:
        raise InputError(
            f"{app.out} has no results of the group level; run that first, or give --template, an image of "
            "known networks"
        )
    sidecar = found[0].with_name(f"{stem(found[0])}.json")
    try:
        used = msgspec.json.decode(sidecar.read_bytes())["Features"]
    except (OSError, KeyError, TypeError, msgspec.MsgspecError):
        raise InputError(f"{sidecar} is malformed; run the group level again") from None
    if used != _settings(app.table):
        raise InputError(
            f"the group level of {app.out} had other features ({used}) than given now "
            f"({_settings(app.table)}); give the same options"
        )
    return found[0]


def run_participants(
    app: App, template: Path, names: Path | None = None, tick: Tick = lambda: None
) -> ParticipantResult:
    """Write the results of each participant; an earlier folder is replaced when the new one is complete."""
    features = app.features()
    given = read_template(template, features, names=names).template
    unmixing = pseudo_inverse(given.maps.T)
    series = app.series(features)
    origin: dict[str, Any] = {"Privacy": dict(INDIVIDUAL), "Maps": template.name}
    if given.own_names:
        origin["Names"] = dict(zip(component_columns(given.n_networks), given.own_names, strict=True))
    app.write_frame()
    written, problems = 0, []
    for person in app.people:
        found = People([person], features, series.cache).check(given.n_networks)
        problems += found
        if not any(problem.fatal for problem in found):
            _write_person(app, person, features, series, unmixing, origin)
            written += 1
        tick()
    if not written:
        first = next(problem for problem in problems if problem.fatal)
        raise InputError(f"{app.scans}: no participant is usable; the first problem: {first}")
    return ParticipantResult(written, problems)


def _write_person(
    app: App,
    person: Person,
    features: ImageFeatures,
    series: People,
    unmixing: Any,
    origin: dict[str, Any],
) -> None:
    label = person_label(person.name)
    runs = [People([Person(person.name, (one,))], features, series.cache)[0] for one in person.recordings]
    files = individual_files(label, person, features, runs, unmixing, origin, app.scans)
    place = app.out / label
    with whole_folder(place, mode=0o700) as draft, writing(place):
        write_files(draft, files, mode=0o600)
