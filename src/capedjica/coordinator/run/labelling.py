"""Labels for the maps of a run, from public images that are not part of its study."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from capedjica.coordinator.run.results import BUNDLE, picture, write_archive
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.data.columns import Columns
from capedjica.data.features import read_regions, with_regions
from capedjica.errors import InputError
from capedjica.report.downloads import csv_text
from capedjica.report.labels import LabelSources, MapLabels, PlacedSources, label_table
from capedjica.study.study_file import Study, StudyStep

if TYPE_CHECKING:
    from capedjica.data.scans import Features

_CONTENT: Final = "labels.json"
_TABLE: Final = "labels.csv"


@dataclass(frozen=True)
class LabelFiles:
    """Files given to label maps.

    Attributes
    ----------
    labels : str, optional
        An image, a ``.npy`` file or the name of one of nilearn's atlases.
    names : Path, optional
        Table of the names of its labels or maps.
    csf, white_matter : Path, optional
        Tissue masks.
    """

    labels: str | None = None
    names: Path | None = None
    csf: Path | None = None
    white_matter: Path | None = None

    @property
    def given(self) -> bool:
        """Whether any file is given."""
        return any(value is not None for value in (self.labels, self.names, self.csf, self.white_matter))

    def placed(self, study: Study, features: Features) -> PlacedSources:
        """Resample the images to the grid of a study's maps; refuse unusable ones before the run starts."""
        if study.networks is None:
            raise InputError(
                "labels are for brain networks, but the study has no such analysis; omit the labels"
            )
        sources = LabelSources.read(self.labels, self.names, self.csf, self.white_matter)
        # Every map has values at these voxels.
        everywhere = features.image(np.ones((1, features.n_features)))
        return sources.placed(everywhere, features.n_features, features.basis is not None)


def placed_features(study: Study, regions: Path | None) -> Features:
    """Return the features of a study; columns of tables get coordinates if their regions are given."""
    if regions is None:
        return study.features
    plain = study.features
    if not isinstance(plain, Columns):
        raise InputError(
            "regions are only for studies of tables, but the features of this study already have "
            "coordinates; omit the regions"
        )
    return with_regions(plain, read_regions(regions, "regions"))


def write_labels(run: Path, files: LabelFiles, regions: Path | None = None) -> None:
    """Label the maps of a complete run, and write the labels next to them and into the bundle."""
    folder, study = RunFolder(run), Study.load(run)
    features = placed_features(study, regions)
    placed, step = files.placed(study, features), study.networks
    assert step is not None
    maps = folder.read_array(str(_place(study, step) / "maps.npy"))
    found = placed.label(maps, picture(features, maps), template_names(step, len(maps)))
    table = label_table(found)
    written = {
        str(_place(study, step) / _CONTENT): msgspec.json.format(msgspec.json.encode(found)) + b"\n",
        str(_place(study, step) / _TABLE): csv_text(table.columns, table.rows).encode(),
    }
    for name, content in written.items():
        folder.write(name, content)
    if folder.holds([BUNDLE]):
        _add_to_bundle(folder, written)


def read_labels(folder: RunFolder, study: Study, step: StudyStep) -> MapLabels | None:
    """Return the labels written for the maps of a run; None if there are none."""
    name = str(_place(study, step) / _CONTENT)
    return folder.read_json(name, MapLabels) if folder.holds([name]) else None


def template_names(step: StudyStep, n_maps: int) -> tuple[str, ...]:
    """Return the template's names of the networks; empty without a template."""
    if getattr(step.table, "template", None) is None:
        return ()
    own: tuple[str, ...] = getattr(step.table, "template_names", ())
    return own or tuple(f"network {number}" for number in range(1, n_maps + 1))


def _place(study: Study, step: StudyStep) -> Path:
    return Path(study.results_folder(step))


def _add_to_bundle(folder: RunFolder, written: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder.path / BUNDLE) as archive:
        content = {entry.filename: archive.read(entry) for entry in archive.infolist()} | written
    folder.produce(BUNDLE, lambda file: write_archive(file, content.items()))
