"""Individual results of a study for each participant of a site: written at that site and never sent.

They are BIDS derivatives (:mod:`capedjica.report.derivatives`). Each participant has a folder, whose files
have the names of the recordings::

    results/<study>/sub-01/func/sub-01_task-rest_desc-ICA_mixing.tsv      time courses, one per component
                                sub-01_task-rest_desc-ICA_spectra.tsv     their power by frequency
                                sub-01_task-rest_desc-ICA_relmat.tsv      functional network connectivity
                                sub-01_task-rest_space-MNI152NLin2009cAsym_desc-ICA_components.nii.gz

The last are individual maps (a table without images). A sidecar next to every file also has the reliability
grade of every component (:mod:`capedjica.algorithms.reliability`). Time courses and spectra are those of one
run. If the study censors volumes, they are excluded from the time courses: volumes that were apart become
adjacent, and spectra are approximate. These files are not differentially private: they reveal the data of the
participant.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from capedjica.algorithms.ica.individual import SEGMENT, analyse_subject, power_spectra
from capedjica.algorithms.reliability import Reliability
from capedjica.data.scans import Features, Person, Recording
from capedjica.errors import InputError
from capedjica.report.derivatives import (
    INDIVIDUAL,
    File,
    component_columns,
    entities_of_run,
    frame_files,
    maps_files,
    matrix_files,
    named,
    shared_entities,
    write_files,
)
from capedjica.site.consent.consents import consenting, standing
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import call_roll, measure
from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray, Scan, read_matrix
from capedjica.tools.atomic_files import write_whole, writing

Outcome = Literal["written", "kept", "unusable", "withdrawn"]
SCANS: Final = "scans"
# The page of a study, in its folder; here, since those who only delete it need nothing that draws.
REPORT: Final = "report.html"
_README: Final = """\
# Individual results: they must not leave this site

Time courses, spectra, connectivity and maps of single participants, written by `capedjica site results` from
the maps of the study '{title}'. Remove them with `capedjica site purge --results`.
"""


@dataclass(frozen=True)
class LocalResults:
    """The individual results that were written.

    Attributes
    ----------
    folder : Path
        Folder of the results.
    written, kept : int
        Number of participants written now, and kept from before.
    unusable : tuple of str
        Names of participants whose scans are unusable; those who withdrew have no results either.
    """

    folder: Path
    written: int
    kept: int
    unusable: tuple[str, ...]


def write_local_results(run: Path, home: SiteHome, tick: Callable[[], None] = lambda: None) -> LocalResults:
    """Write the individual results of each participant of a site from the maps of a run.

    Each folder appears when it is complete. After an interruption, existing folders are kept. ``tick`` is
    called after each participant.
    """
    if run.suffix == ".zip":
        raise InputError(f"{run} is packed; unpack it into a folder of its own and give that folder")
    study = Study.load(run)
    if study.content.features.kind == "table":
        raise InputError(
            f"'{study.content.title}' analysed rows of a table, which give no individual brain networks; "
            "expected a study of scans"
        )
    unmixing, origin = unmixing_of(run, study), _origin(run, study)
    people = call_roll(home, study).people
    folder = _own_folder(home, study, unmixing)
    outcomes: dict[Outcome, list[str]] = {"written": [], "kept": [], "unusable": [], "withdrawn": []}
    for person in people:
        outcomes[_write_person(folder, person, study, home, unmixing, origin)].append(person.name)
        tick()
    return LocalResults(folder, len(outcomes["written"]), len(outcomes["kept"]), tuple(outcomes["unusable"]))


def purge_results(home: SiteHome) -> int:
    """Remove all individual results; return the number of studies with results."""
    folders = [path for path in home.results_path.glob("*") if path.is_dir()]
    try:
        if home.results_path.exists():
            shutil.rmtree(home.results_path)
    except OSError as error:
        raise InputError(f"{home.results_path} cannot be removed: {error.strerror}") from None
    return len(folders)


def unmixing_of(run: Path, study: Study) -> FloatArray:
    """Return the unmixing matrix of a run; raise InputError if it does not match the study."""
    step, table = study.networks, study.content.networks
    if step is None or table is None:
        raise InputError(f"'{study.content.title}' has no analysis of kind 'ica' and so no networks")
    file = run / study.results_folder(step) / "unmixing.npy"
    if not file.exists():
        inner = f"; did you mean {run / 'run'}?" if (run / "run" / "run.json").exists() else ""
        raise InputError(
            f"{file} does not exist: expected the folder of a complete run, or an unpacked results.zip{inner}"
        )
    unmixing = read_matrix(file)
    expected = (table.most_components, step.setting.n_features)
    if unmixing.ndim != 2 or not table.fits(len(unmixing)) or unmixing.shape[1] != expected[1]:
        raise InputError(f"{file} has shape {unmixing.shape}, but its study requires {expected}")
    return unmixing


def reliability_of(run: Path) -> Reliability:
    """Return the reliability of the maps of a run."""
    study = Study.load(run)
    assert study.networks is not None
    return read_reliability(run, study, study.networks)


def _own_folder(home: SiteHome, study: Study, unmixing: FloatArray) -> Path:
    """Create and return the folder of a study's results, accessible only to its owner."""
    folder, digest = home.results_path / study.hash.hex()[:16], hashlib.sha256(unmixing.tobytes()).hexdigest()
    mark = folder / ".maps"
    with writing(folder):
        for path in (home.results_path, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
        if mark.exists() and mark.read_text(encoding="ascii") != digest:
            raise InputError(
                f"{folder} contains results computed from different maps of this study; remove them first: "
                "capedjica site purge --results"
            )
        write_whole(mark, digest.encode(), mode=0o600)
        write_files(folder, _frame(home, study), mode=0o600)
        for draft in folder.glob(".sub-*.part"):
            shutil.rmtree(draft)
    return folder


def _frame(home: SiteHome, study: Study) -> Iterator[File]:
    title = study.content.title
    return frame_files(title, _README.format(title=title), {SCANS: home.data_path.resolve().as_uri()})


def person_label(name: str) -> str:
    """Return the folder name of a participant's results."""
    return name if name.startswith("sub-") else f"sub-{name}"


def _write_person(
    folder: Path,
    person: Person,
    study: Study,
    home: SiteHome,
    unmixing: FloatArray,
    origin: dict[str, Any],
) -> Outcome:
    """Write the folder of one participant atomically, unless the participant withdrew."""
    label = person_label(person.name)
    if _withdrew(folder, person, home):
        return "withdrawn"
    if (folder / label).exists():
        return "kept"
    runs = _runs(person, study, home)
    if not runs:
        return "unusable"
    draft = folder / f".{label}.part"
    try:
        draft.mkdir(mode=0o700)
        files = individual_files(label, person, study.features, runs, unmixing, origin, home.data_path)
        # defence: results-about-single-people
        write_files(draft, files, mode=0o600)
        draft.rename(folder / label)
    except OSError as error:
        if not _withdrew(folder, person, home):
            raise InputError(f"{folder / label} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    # Checked again: a withdrawal first adds to the list, then removes results, so either side sees the other.
    return "withdrawn" if _withdrew(folder, person, home) else "written"


def _withdrew(folder: Path, person: Person, home: SiteHome) -> bool:
    """Return whether a participant withdrew; if so, remove their folder."""
    # defence: results-written-after-a-withdrawal
    if person.name not in standing(home):
        return False
    shutil.rmtree(folder / person_label(person.name), ignore_errors=True)
    return True


def _runs(person: Person, study: Study, home: SiteHome) -> list[Scan]:
    """Return the series of a participant's runs; empty unless all are usable, as in the study itself."""
    alone = [Person(person.name, (recording,)) for recording in person.recordings]
    runs = list(consenting(home, alone, study.features, standing(home)))
    return runs if all(run.size and np.isfinite(run).all() for run in runs) else []


def _origin(run: Path, study: Study) -> dict[str, Any]:
    """Return the metadata of every file of a participant: the study and the component reliability."""
    reliability = reliability_of(run)
    columns = component_columns(reliability.n_maps)
    origin: dict[str, Any] = {
        "Study": study.content.title,
        "StudyHash": study.hash.hex(),
        "Privacy": dict(INDIVIDUAL),
    }
    if reliability.grades is not None and (reliability.noisy or not reliability.networks):
        origin["Reliability"] = dict(zip(columns, reliability.grades, strict=True))
    if reliability.banner:
        origin["Warning"] = reliability.banner
    networks = study.content.networks
    if networks is not None and networks.template_names:
        origin["Names"] = dict(zip(columns, networks.template_names, strict=True))
    return origin


def individual_files(
    label: str,
    person: Person,
    features: Features,
    runs: Sequence[Scan],
    unmixing: FloatArray,
    origin: Mapping[str, Any],
    scans: Path,
) -> Iterator[File]:
    """Yield the names and contents of the files in a participant's folder.

    Parameters
    ----------
    label : str
        Name of the participant's folder, ``sub-XX``.
    person : Person
        The participant.
    features : Features
        The features.
    runs : sequence of array (T_i, D)
        Series of the participant's recordings, in order.
    unmixing : array (R, D)
        Pseudo-inverse of the group's maps.
    origin : dict
        Metadata for every sidecar.
    scans : Path
        Data set of the recordings, to which sidecars refer as ``bids:scans:``.
    """
    found, columns = analyse_subject(runs, unmixing), component_columns(len(unmixing))
    for recording, own, courses in zip(
        person.recordings, _runs_apart(person.recordings), found.courses, strict=True
    ):
        measured = measure(recording)
        tr, left_out = measured.repetition_time, measured.n_timepoints - len(courses)
        about = {
            **origin,
            "Sources": [_source(recording, scans)],
            "RepetitionTime": tr,
            "VolumesLeftOut": left_out,
        }
        yield from matrix_files(_place(label, own, "mixing"), columns, courses, about | _courses_words(tr))
        frequencies, power = power_spectra(courses, tr)
        table, headings = np.column_stack([frequencies, power]), ["frequency", *columns]
        yield from matrix_files(_place(label, own, "spectra"), headings, table, about | _spectra_words(tr))
    shared = shared_entities(recording.path for recording in person.recordings)
    about = {**origin, "Sources": [_source(recording, scans) for recording in person.recordings]}
    place = _place(label, shared | {"space": ""}, "relmat")
    yield from matrix_files(place, columns, found.connectivity, about | _RELATIONS)
    image = features.image(found.maps)
    place = _place(label, shared, "components")
    yield from maps_files(place, found.maps, image, about | _MAPS)


def _runs_apart(recordings: Sequence[Recording]) -> list[dict[str, str]]:
    """Return the entities of each run; where names do not tell runs apart, their numbers."""
    own = [entities_of_run(recording.path) for recording in recordings]
    if len({named(one, "") for one in own}) == len(own):
        return own
    return [{"run": str(number)} for number in range(1, len(own) + 1)]


def _place(label: str, entities: Mapping[str, str], suffix: str) -> str:
    """Return the path of a file in a participant's folder, without its extension."""
    session = entities.get("ses")
    folder = f"ses-{session}/func" if session else "func"
    rest = named({key: value for key, value in entities.items() if key != "sub"} | {"desc": "ICA"}, suffix)
    return f"{folder}/{label}_{rest}"


def _source(recording: Recording, scans: Path) -> str:
    """Return a recording as a BIDS URI."""
    return f"bids:{SCANS}:{Path(os.path.relpath(recording.path, scans)).as_posix()}"


_RELATIONS: Final = {
    "Description": "Functional network connectivity: Fisher's z, artanh(r), of the correlations r between "
    "the time courses of components, over all runs, each run standardised separately. The diagonal is 0.",
    "RelationshipMeasure": "Fisher's z of Pearson's correlation",
}
_MAPS: Final = {
    "Description": "Individual maps by dual regression: regression of the scan on the group maps gives time "
    "courses; regression of the scan on these time courses, standardised, gives the maps.",
}


def _courses_words(tr: float | None) -> dict[str, Any]:
    return {
        "Description": "Time courses of the group components, in the units of the scan.",
        "SamplingFrequency": None if tr is None else 1 / tr,
        "StartTime": 0,
    }


def _spectra_words(tr: float | None) -> dict[str, Any]:
    unit = "cycles per time point" if tr is None else "Hz"
    return {
        "Description": "Power spectral densities of the time courses, by Welch's method in segments of at "
        f"most {SEGMENT} time points. Frequencies in {unit}.",
        "FrequencyUnit": unit,
    }
