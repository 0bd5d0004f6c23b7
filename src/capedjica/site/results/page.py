"""The local report: a page of the individual results of a site, which stays there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from capedjica.algorithms.ica.maps.networks import mixing_of
from capedjica.errors import InputError
from capedjica.report.derivatives import read_table
from capedjica.report.local import PersonResults, Spectrum, local_page
from capedjica.report.page import write_page
from capedjica.site.home import SiteHome
from capedjica.site.results.individual import REPORT, reliability_of, unmixing_of, write_local_results
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray


def write_local_report(run: Path, home: SiteHome, tick: Callable[[], None] = lambda: None) -> Path:
    """Write missing individual results and the page of all of them, readable only by its owner."""
    written = write_local_results(run, home, tick)
    study = Study.load(run)
    group = mixing_of(unmixing_of(run, study)).T
    people = [_person(folder, study, group) for folder in sorted(written.folder.glob("sub-*"))]
    if not people:
        raise InputError(f"site {home.settings.name} has no individual results: no scan is usable")
    path = written.folder / REPORT
    table = study.content.networks
    names = () if table is None else table.template_names
    page = local_page(
        study.content.title, home.settings.name, people, written.unusable, reliability_of(run).banner, names
    )
    write_page(path, page, 0o600)
    return path


def _person(folder: Path, study: Study, group: FloatArray) -> PersonResults:
    courses = _sorted(folder, "mixing")
    spectra = _sorted(folder, "spectra")
    try:
        return PersonResults(
            name=folder.name,
            courses=[read_table(path) for path in courses],
            spectra=[_spectrum(path) for path in spectra],
            connectivity=read_table(_sorted(folder, "relmat")[0]),
            fit=_fit(folder, study, group),
            left_out=sum(int(_about(path)["VolumesLeftOut"]) for path in courses),
            files={
                _words(path): quote(path.relative_to(folder.parent).as_posix())
                for path in sorted(folder.rglob("*"))
                if path.is_file() and path.suffix != ".json"
            },
        )
    except (OSError, KeyError, IndexError, TypeError, ValueError):
        raise InputError(
            f"{folder} is malformed; remove it and write it again with capedjica site results"
        ) from None


def _sorted(folder: Path, kind: str) -> list[Path]:
    """Return the tables of a kind, sorted by run."""
    return sorted(folder.rglob(f"*_desc-ICA_{kind}.tsv"), key=lambda path: (len(path.name), path.name))


def _spectrum(path: Path) -> Spectrum:
    values = read_table(path)
    return Spectrum(values[:, 0], values[:, 1:], str(_about(path)["FrequencyUnit"]))


def _about(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return content


def _words(path: Path) -> str:
    """Return the content of a file in words: the suffix of its name, and its session and run."""
    parts = path.name.split(".")[0].split("_")
    several = [part.replace("-", " ") for part in parts if part.startswith(("ses-", "run-"))]
    return " ".join([parts[-1], *several])


def _fit(folder: Path, study: Study, group: FloatArray) -> float:
    """Return the mean spatial correlation of a participant's own maps with the group maps."""
    (own,) = (path for path in folder.rglob("*_desc-ICA_components.*") if path.suffix != ".json")
    if own.suffix == ".tsv":
        maps, reference = read_table(own).T, group
    else:
        import nibabel

        whole = study.features.image(group)
        assert whole is not None
        mine = np.asarray(nibabel.load(own).dataobj, dtype=np.float64)  # type: ignore[attr-defined]
        theirs = np.asarray(whole.dataobj, dtype=np.float64)
        inside = np.abs(theirs).max(axis=-1) > 0
        maps, reference = mine[inside].T, theirs[inside].T
    a = maps - maps.mean(axis=1, keepdims=True)
    b = reference - reference.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(np.sum(a * b, axis=1) / np.where(lengths > 0, lengths, 1.0)))
