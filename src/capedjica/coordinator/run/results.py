"""Result files of a run: arrays, pictures, tables, privacy cost and provenance."""

from __future__ import annotations

import gzip
import math
import platform
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from capedjica.algorithms.analysis import Result
from capedjica.algorithms.ica.maps.networks import Networks
from capedjica.algorithms.reliability import Reliability
from capedjica.algorithms.sequence import Results
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.data.columns import RegionColumns
from capedjica.data.features import read_regions
from capedjica.data.images import scaled_to_peak
from capedjica.data.scans import Features
from capedjica.data.templates import names_beside
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.statement import PrivacyStatement
from capedjica.privacy.wording import NOT_PRIVATE
from capedjica.report.downloads import csv_text
from capedjica.report.pictures.brain import RegionsAt, find_peaks, peaks_csv, read_region_names
from capedjica.report.pictures.figures import draw, maps_figure, slices_figure
from capedjica.study.public_files import file_names
from capedjica.study.reliability_file import reliability_json
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray
from capedjica.tools.version import __version__

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

SCALE: Final = "largest absolute value 1, positive; in the order of the features at which they peak"
TEMPLATE_SCALE: Final = "largest absolute value 1; in the order of the template, and with its signs"
_LIBRARIES: Final = ("numpy", "scipy", "numba", "cryptography", "msgspec", "nibabel", "nilearn")
BUNDLE: Final = "results.zip"


class Cost(msgspec.Struct):
    """Fields of a ``privacy.json`` shown in the terminal."""

    statement: str
    carriers: dict[str, str] = {}
    absent: list[str] = []


@dataclass(frozen=True)
class SiteFacts:
    """Facts about sites other than their cost.

    Attributes
    ----------
    left_out : dict
        Reasons why sites were excluded.
    carriers : dict
        Confinement of each site's carrier, which separates it from the site's files.
    """

    left_out: Mapping[str, str]
    carriers: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """Return the facts for ``privacy.json``."""
        return {"left_out": dict(self.left_out), "carriers": dict(self.carriers)}


class Provenance(msgspec.Struct):
    """Fields of a ``provenance.json`` shown in the report; the file also contains the whole study.

    Attributes
    ----------
    capedjica, python : str
        Versions.
    libraries : dict
        Versions of the libraries.
    contract : str
        Hash of the contract that the sites approved.
    n_iter : int
        Number of iterations run.
    started : str
        Time at which the run began (UTC).
    resumed : int
        Number of times that the run was resumed.
    files : dict
        SHA-256 of each file of results.
    """

    capedjica: str
    python: str
    libraries: dict[str, str]
    contract: str
    n_iter: int
    started: str
    resumed: int
    files: dict[str, str]


class TableFile(msgspec.Struct):
    """One table of a ``tables.json``, see :class:`capedjica.algorithms.analysis.ResultTable`.

    Attributes
    ----------
    name : str
        Name of the file of the table, without its extension.
    caption : str
        Description, in a sentence or two.
    columns : list of str
        Column names.
    rows : list
        Rows with one value per column; null where nothing could be estimated.
    chart : str
        Whether the report draws the second column as bars.
    """

    name: str
    caption: str
    columns: list[str]
    rows: list[list[Any]]
    chart: Literal["bars", "none"]


def is_whole(folder: RunFolder) -> bool:
    """Return whether all files of a complete run still exist."""
    if not folder.holds(["privacy.json", "provenance.json", BUNDLE]):
        return False
    return folder.holds(folder.read_json("provenance.json", Provenance).files)


def write_results(
    folder: RunFolder,
    study: Study,
    found: Result,
    privacy: PrivacyStatement,
    state: RunState,
    sites: SiteFacts,
) -> None:
    """Write results, privacy cost, provenance, and a bundle of all files.

    If there are several analyses, each has its own folder with its name; a single analysis has none.
    """
    results = found.by_name if isinstance(found, Results) else {study.steps[0].name: found}
    title = study.content.title if privacy.private else f"{study.content.title} ({NOT_PRIVATE})"
    files = [
        name
        for step in study.steps
        for name in _write_result(folder, study, study.results_folder(step), results[step.name], title)
    ]
    folder.write_json("privacy.json", privacy_json(privacy) | sites.json())
    folder.write_json(
        "provenance.json",
        {
            "capedjica": __version__,
            "python": platform.python_version(),
            "libraries": {name: version(name) for name in _LIBRARIES},
            "study": {"hash": study.hash.hex(), **msgspec.to_builtins(study.content)},
            "contract": study.contract.hash.hex(),
            "n_iter": found.n_iter,
            "maps": scale(study),
            "started": state.started,
            "resumed": state.resumed,
            "files": {name: folder.hash_of(name) for name in files},
        },
    )
    folder.produce(BUNDLE, lambda file: _write_bundle(file, folder, study, files))


def scale(study: Study) -> str:
    """Return the order and scale of the maps of a study, as text."""
    table = study.content.networks
    return SCALE if table is None or table.template is None else TEMPLATE_SCALE


def _write_result(folder: RunFolder, study: Study, place: str, found: Result, title: str) -> list[str]:
    """Write the results of one analysis; return the names of the files."""
    where = f"{place}/" if place else ""
    names = [f"{where}{name}.npy" for name in found.arrays()]
    for name, array in found.arrays().items():
        folder.write_array(f"{where}{name}.npy", array)
    tables = found.tables()
    for one in tables:
        _write_table(folder, f"{where}{one.name}.csv", one.columns, one.rows)
        names.append(f"{where}{one.name}.csv")
        if found.with_tabs:
            folder.write(f"{where}{one.name}.tsv", csv_text(one.columns, one.rows, "\t").encode())
            names.append(f"{where}{one.name}.tsv")
    if tables:
        # Numbers that could not be estimated are null.
        shown = [replace(one, rows=[list(map(_finite, row)) for row in one.rows]) for one in tables]
        folder.write_json(f"{where}tables.json", [msgspec.to_builtins(one) for one in shown])
        names.append(f"{where}tables.json")
    if found.maps is None:
        return names
    folder.write_array(f"{where}maps.npy", found.maps)
    columns = _names(found) or [f"map {number}" for number in range(1, len(found.maps) + 1)]
    _write_table(folder, f"{where}maps.csv", columns, found.maps.T)
    names += [f"{where}maps.npy", f"{where}maps.csv", *_write_pictures(folder, study, where, found, title)]
    folder.write_json(f"{where}reliability.json", reliability_json(_reliability(study, found), _names(found)))
    return [*names, f"{where}reliability.json"]


def _names(found: Result) -> list[str]:
    """Return the names of the maps; empty if they have none."""
    template = found.template if isinstance(found, Networks) else None
    return [] if template is None else list(template.own_names)


def _reliability(study: Study, found: Result) -> Reliability:
    n_maps = 0 if found.maps is None else len(found.maps)
    guided = isinstance(found, Networks) and found.template is not None
    return Reliability(n_maps, found.stability, study.contract.mechanism != "none", guided)


def _write_pictures(folder: RunFolder, study: Study, where: str, found: Result, title: str) -> list[str]:
    """Write the maps as images, if features have coordinates; return the names of the files."""
    maps, reliability = found.maps, _reliability(study, found)
    assert maps is not None
    shape, image = study.content.features.image_shape, picture(study.features, maps)
    names = [f"{where}maps.png"]
    if shape is not None:
        figure = maps_figure({"": maps.reshape(-1, *shape)}, title, reliability, _names(found))
    elif image is not None:
        folder.write(f"{where}maps.nii.gz", gzip.compress(image.to_bytes(), mtime=0))
        peaks = find_peaks(image, _regions(study))
        folder.write(f"{where}peaks.csv", peaks_csv(peaks))
        figure = slices_figure(image, title, reliability, _names(found), approximate(study.features))
        names = [f"{where}maps.nii.gz", f"{where}peaks.csv", *names]
        smooth = found.denoised if isinstance(found, Networks) else None
        if smooth is not None:
            denoised = picture(study.features, smooth)
            assert denoised is not None
            folder.write(f"{where}maps_denoised.nii.gz", gzip.compress(denoised.to_bytes(), mtime=0))
            names.append(f"{where}maps_denoised.nii.gz")
    else:
        return []
    folder.produce(f"{where}maps.png", lambda file: draw(figure, file))
    return names


def picture(features: Features, maps: FloatArray) -> Nifti1Image | None:
    """Return maps (R, D) as an image, each scaled to a largest absolute value of 1; None if not possible."""
    image = features.image(maps)
    return None if image is None else scaled_to_peak(image)


def approximate(features: Features) -> bool:
    """Return whether features are regions whose borders are approximate."""
    return isinstance(features, RegionColumns) and features.approximate


def _regions(study: Study) -> RegionsAt | None:
    """Return the regions of a label atlas, with their names if it or a table next to it has them."""
    name = study.content.features.atlas
    if name is None:
        return None
    path = study.folder / name
    atlas, table = read_regions(path, "atlas").image, names_beside(path)
    names = {} if table is None else read_region_names(table)
    return RegionsAt(atlas, names) if len(atlas.shape) == 3 else None


def _write_bundle(file: IO[bytes], folder: RunFolder, study: Study, files: Sequence[str]) -> None:
    """Write an archive of all files to be shared: the results and the study with its public files."""
    public = file_names(study.content.with_files)
    names = [*files, "privacy.json", "provenance.json", "study.toml", *public]
    write_archive(file, ((name, (folder.path / name).read_bytes()) for name in names))


def write_archive(file: IO[bytes], contents: Iterable[tuple[str, bytes]]) -> None:
    """Write files into a reproducible archive, without dates."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def _write_table(
    folder: RunFolder, name: str, columns: Sequence[str], rows: Iterable[Sequence[str | float]]
) -> None:
    folder.write(name, csv_text(columns, rows).encode())


def _finite(value: Any) -> Any:
    """Return a plain value for JSON, with null for a number that is not finite."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def privacy_json(privacy: PrivacyStatement) -> dict[str, Any]:
    """Return a statement as plain values, with null for infinite costs (all of them without protection)."""
    whom, cost = privacy.adversary, _finite
    return {
        "statement": str(privacy),
        "private": privacy.private,
        "neighbour": privacy.neighbour,
        "units_per_subject": privacy.units_per_subject,
        "epsilon": cost(privacy.epsilon),
        "delta": privacy.delta,
        "mu": cost(privacy.mu),
        "subject_epsilon": cost(privacy.subject_epsilon),
        "subject_mu": cost(privacy.subject_mu),
        "spent_epsilon": cost(privacy.spent_epsilon),
        "against": whom.against,
        "not_against": whom.not_against,
        "curious_site_epsilon": privacy.curious_site_epsilon,
        "guarantee": privacy.guarantee.as_dict(),
        "not_covered": list(privacy.not_covered),
        "mechanism": privacy.mechanism,
        "n_sites": privacy.n_sites,
        "n_colluding": privacy.n_colluding,
        "sites": {
            name: {
                "epsilon": cost(privacy.site_epsilon.get(name, math.inf)),
                "spent_mu_squared": cost(mu2),
                "spent_epsilon": cost(gaussian_epsilon(math.sqrt(mu2), privacy.delta)),
            }
            for name, mu2 in (privacy.charged or {}).items()
        },
        "lost": list(privacy.lost),
        "absent": list(privacy.absent),
        "releases": [
            {
                "label": release.label,
                "mu": {name: cost(mu) for name, mu in release.site_mu.items()},
                "noise": release.noise,
                "given_up": release.aborted,
            }
            for release in privacy.releases
        ],
    }
