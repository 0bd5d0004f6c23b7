"""Individual results of a study for each participant of a site: written at that site and never sent.

Each participant has a folder with BIDS-style names::

    results/<study>/sub-01/sub-01_desc-components_timeseries.tsv   a column per component
                           sub-01_desc-components_spectra.tsv      power of the time courses by frequency
                           sub-01_desc-components_relmat.tsv       functional network connectivity
                           sub-01_desc-components_maps.nii.gz      individual maps (.npy without images)

with a JSON file next to every table, which also has the reliability grade of every component
(:mod:`capedjica.algorithms.reliability`). With several runs, the names of the files of one run contain
``run-1``, ``run-2``... If the study censors volumes, they are excluded from the time courses: volumes that
were apart become adjacent, and spectra are approximate. These files are not differentially private: they
reveal the data of the participant.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from capedjica.algorithms.ica.individual import SEGMENT, SingleSubject, analyse_subject, power_spectra
from capedjica.algorithms.reliability import Reliability
from capedjica.data.scans import Person
from capedjica.errors import InputError
from capedjica.site.consent.consents import consenting, standing
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import call_roll, measure
from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray, Scan, read_matrix
from capedjica.tools.atomic_files import write_whole, writing

_README: Final = """\
Individual results: they must not leave this site. Written by `capedjica site results` from the maps of
'{title}'; remove them with `capedjica site purge --results`.
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
        Names of participants whose scans are unusable.
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
    study = Study.load(run)
    if study.content.features.kind == "table":
        raise InputError(
            f"'{study.content.title}' analysed rows of a table, which give no individual brain networks; "
            "expected a study of scans"
        )
    unmixing, origin = unmixing_of(run, study), _origin(run, study)
    people = call_roll(home, study).people
    folder = _own_folder(home, study, unmixing)
    outcomes: dict[str, list[str]] = {"written": [], "kept": [], "unusable": []}
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
        write_whole(folder / "README.txt", _README.format(title=study.content.title).encode(), mode=0o600)
        for draft in folder.glob(".sub-*.part"):
            shutil.rmtree(draft)
    return folder


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
) -> str:
    """Write the folder of one participant atomically; return "written", "kept" or "unusable"."""
    label = person_label(person.name)
    if _withdrew(folder, person, home):
        return "unusable"
    if (folder / label).exists():
        return "kept"
    runs = _runs(person, study, home)
    if not runs:
        return "unusable"
    draft = folder / f".{label}.part"
    try:
        draft.mkdir(mode=0o700)
        for name, content in _files(label, person, study, runs, unmixing, origin):
            # defence: results-about-single-people
            write_whole(draft / name, content, mode=0o600)
        draft.rename(folder / label)
    except OSError as error:
        if not _withdrew(folder, person, home):
            raise InputError(f"{folder / label} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    # Checked again: a withdrawal first adds to the list, then removes results, so either side sees the other.
    return "unusable" if _withdrew(folder, person, home) else "written"


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
    columns = _columns(reliability.n_maps)
    origin: dict[str, Any] = {"Study": study.content.title, "StudyHash": study.hash.hex()}
    if reliability.grades is not None and (reliability.noisy or not reliability.networks):
        origin["Reliability"] = dict(zip(columns, reliability.grades, strict=True))
    if reliability.banner:
        origin["Warning"] = reliability.banner
    networks = study.content.networks
    if networks is not None and networks.template_names:
        origin["Names"] = dict(zip(columns, networks.template_names, strict=True))
    return origin


def _columns(count: int) -> list[str]:
    return [f"component-{number:02d}" for number in range(1, count + 1)]


def _files(
    label: str,
    person: Person,
    study: Study,
    runs: list[Scan],
    unmixing: FloatArray,
    origin: dict[str, Any],
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of a participant's files."""
    found, columns = analyse_subject(runs, unmixing), _columns(len(unmixing))
    for number, (recording, courses) in enumerate(
        zip(person.recordings, found.courses, strict=True), start=1
    ):
        stem = f"{label}_run-{number}" if len(runs) > 1 else label
        measured = measure(recording)
        tr, left_out = measured.repetition_time, measured.n_timepoints - len(courses)
        about = origin | {"Sources": [str(recording.path)], "RepetitionTime": tr, "VolumesLeftOut": left_out}
        yield from _table(f"{stem}_desc-components_timeseries", columns, courses, about | _courses_words(tr))
        frequencies, power = power_spectra(courses, tr)
        table = np.column_stack([frequencies, power])
        yield from _table(
            f"{stem}_desc-components_spectra", ["frequency", *columns], table, about | _spectra_words(tr)
        )
    about = origin | {"Sources": [str(recording.path) for recording in person.recordings]}
    yield from _table(f"{label}_desc-components_relmat", columns, found.connectivity, about | _RELATIONS)
    yield from _maps(label, study, found, about)


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


def _table(
    stem: str, columns: list[str], values: FloatArray, about: dict[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield a table and its JSON file."""
    buffer = io.BytesIO()
    np.savetxt(buffer, values, fmt="%.8g", delimiter="\t", header="\t".join(columns), comments="")
    yield f"{stem}.tsv", buffer.getvalue()
    yield f"{stem}.json", _json(about | {"Columns": columns})


def _maps(
    label: str, study: Study, found: SingleSubject, about: dict[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield a participant's maps, as an image if the features have positions in the brain."""
    stem, image = f"{label}_desc-components_maps", study.features.image(found.maps)
    if image is None:
        buffer = io.BytesIO()
        np.save(buffer, found.maps, allow_pickle=False)
        yield f"{stem}.npy", buffer.getvalue()
    else:
        yield f"{stem}.nii.gz", gzip.compress(image.to_bytes(), mtime=0)
    yield f"{stem}.json", _json(about | _MAPS)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
