"""Data of simulated sites: tables of the pixels of square images, or fMRI scans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from capedjica.data.features import FeatureTable
from capedjica.data.layouts import DataKind
from capedjica.data.simulated.brain import SPACE, Brain, BrainModel, mni_brain
from capedjica.data.simulated.brain_files import BidsFolder, NiftiFolder
from capedjica.data.simulated.synthetic import SyntheticModel
from capedjica.data.timeseries import write_scan

if TYPE_CHECKING:
    from capedjica.one_machine.simulation import Simulation

# Maximum bytes of one number: four for float32, or nine digits with sign, point, exponent and separator.
_NUMBER_BYTES: Final = {"npy": 4, "csv": 16}
# Upper bound on the overhead of a file: the header, and the rest of its last block.
_FILE_BYTES: Final = 8192
_CONFOUND_BYTES: Final = 64 * 16  # per volume: columns times digits
# Frequency in Hz below the cosines of the confounds.
_HIGH_PASS: Final = 0.008
# Degrees of freedom removed from a run: 24 motion parameters, two physiological signals, drift.
_TAKEN_OUT: Final = 40
_TRUTH: Final = """\
Ground truth of the simulated scans of this study, for comparison with results. No analysis reads it.

mixing.npy  A, one row per feature and one column per component: a scan is S A', with the time courses S
            (one column per component) standardised for each subject{noise}.
{maps}

The scans are in ../sites/*/data, numbered across all sites. The seed {seed} determines scans and truth.
"""
_MAPS: Final = "maps.npy    the same maps as images, one per component."
_BRAIN_MAPS: Final = """\
maps.nii.gz the same maps as images in MNI space, one per component, in per cent of the mean image.

The features are the voxels of ../mask.nii.gz in row-major order. The scans also contain artefacts as in real
scans, multiplied by the gain of their site's scanner; see capedjica.data.simulated.brain."""


class SimulatedData(Protocol):
    """Simulated data, and how they are written."""

    kind: DataKind

    @property
    def features(self) -> FeatureTable:
        """Table of features for study.toml."""

    @property
    def shortest(self) -> int:
        """Minimum number of time points of a scan."""

    @property
    def n_bytes(self) -> int:
        """Upper bound on the size of scans and ground truth on disk."""

    @property
    def picture(self) -> str:
        """Size of a volume of a scan, as text."""

    def write_public(self, folder: Path) -> None:
        """Write the public files of the study."""

    def write_truth(self, folder: Path) -> None:
        """Write the ground truth."""

    def write_scans(self, folders: Sequence[Path], progress: Callable[[], None]) -> None:
        """Write the scans of each site into its folder; ``progress`` is called after each subject."""


class Tables:
    """Square images with one row per time point, one file per subject.

    Parameters
    ----------
    simulation : Simulation
        Settings of the simulation.
    """

    kind: DataKind = "files"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    @property
    def shortest(self) -> int:
        """Minimum number of time points, the number of components."""
        return self._simulation.n_components

    @property
    def n_bytes(self) -> int:
        """Upper bound on the size of scans and ground truth on disk."""
        asked = self._simulation
        n_features = asked.image_side**2
        scan = asked.n_timepoints[1] * n_features * _NUMBER_BYTES[asked.file_format] + _FILE_BYTES
        return asked.n_subjects * scan + 2 * 8 * n_features * asked.n_components + 3 * _FILE_BYTES

    @property
    def picture(self) -> str:
        """Size of an image, as text."""
        side = self._simulation.image_side
        return f"{side} x {side} pixels"

    @property
    def features(self) -> FeatureTable:
        """Table of features for study.toml."""
        asked = self._simulation
        return FeatureTable(
            n_features=asked.image_side**2,
            scan_length=round(sum(asked.n_timepoints) / 2),
            image_shape=(asked.image_side, asked.image_side),
        )

    @cached_property
    def model(self) -> SyntheticModel:
        """Generative model of the scans."""
        asked = self._simulation
        model = SyntheticModel.draw(
            asked.n_subjects,
            asked.n_components,
            asked.n_timepoints,
            asked.image_side,
            asked.seed,
            noise=asked.noise,
        )
        return model if asked.groups is None else replace(model, gains=asked.groups.gains)

    def write_public(self, folder: Path) -> None:
        """Write nothing, as columns need no public files."""

    def write_truth(self, folder: Path) -> None:
        """Write the maps."""
        _write_truth(folder, self._simulation, self.model, _MAPS)
        np.save(folder / "maps.npy", self.model.maps)

    def write_scans(self, folders: Sequence[Path], progress: Callable[[], None]) -> None:
        """Write one file per subject."""
        asked, subjects = self._simulation, self.model.subjects()
        for folder, names in zip(folders, site_names(asked), strict=True):
            folder.mkdir()
            for name, scan in zip(names, subjects, strict=False):
                write_scan(folder / f"{name}.{asked.file_format}", scan)
                progress()
        _write_participants(folders, asked)


class Scans:
    """fMRI scans: plain images, or fMRIPrep derivatives with confounds.

    Plain images have no confounds to regress out, and therefore no motion and no physiological noise.

    Parameters
    ----------
    simulation : Simulation
        Settings of the simulation.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._bids = simulation.file_format == "bids"
        self.kind: DataKind = "bids" if self._bids else "nifti"

    @property
    def shortest(self) -> int:
        """Minimum number of time points that leaves enough for the components after preprocessing."""
        return self._simulation.n_components + _TAKEN_OUT

    @property
    def n_bytes(self) -> int:
        """Upper bound on the size of scans and ground truth on disk, with two runs per subject."""
        asked, n_voxels = self._simulation, self.brain.n_voxels
        volume = 2 * n_voxels + self.brain.mask.size // 50 + self._bids * _CONFOUND_BYTES
        run = asked.n_timepoints[1] * volume + (5 if self._bids else 1) * _FILE_BYTES
        return 2 * asked.n_subjects * run + 2 * 8 * n_voxels * asked.n_components + 4 * _FILE_BYTES

    @property
    def picture(self) -> str:
        """Size of a volume, as text."""
        shape = " x ".join(map(str, self.brain.mask.shape))
        return f"{shape} voxels of {self.brain.voxel_size:g} mm, {self.brain.n_voxels:,} of them in the brain"

    @property
    def brain(self) -> Brain:
        """Brain mask and grid of the scans."""
        return mni_brain(self._simulation.voxel_size)

    @property
    def features(self) -> FeatureTable:
        """Table of features for study.toml."""
        cleaning: dict[str, Any] = {"high_pass": _HIGH_PASS}
        if self._bids:
            cleaning = {"space": SPACE, "confounds": ("motion", "wm_csf", "high_pass")}
        return FeatureTable(
            kind="voxels",
            mask="mask.nii.gz",
            detrend=True,
            **cleaning,
            n_features=self.brain.n_voxels,
            scan_length=round(median(run.n_volumes for run in self.model.runs)),
        )

    @cached_property
    def model(self) -> BrainModel:
        """Generative model of the scans."""
        asked = self._simulation
        model = BrainModel.draw(
            asked.subjects,
            asked.n_components,
            asked.n_timepoints,
            asked.voxel_size,
            asked.seed,
            noise=asked.noise,
        )
        if asked.groups is None:
            return model
        # All runs of a subject have the same gains.
        gains = asked.groups.gains[[run.person for run in model.runs]]
        return replace(model, signal=replace(model.signal, gains=gains))

    def write_public(self, folder: Path) -> None:
        """Write the mask, whose voxels are the features."""
        self.brain.mask_image().to_filename(folder / "mask.nii.gz")

    def write_truth(self, folder: Path) -> None:
        """Write the maps."""
        _write_truth(folder, self._simulation, self.model.signal, _BRAIN_MAPS)
        image = self.brain.image(self.model.signal.maps.astype(np.float32))
        image.to_filename(folder / "maps.nii.gz")

    def write_scans(self, folders: Sequence[Path], progress: Callable[[], None]) -> None:
        """Write the runs one by one."""
        names = site_names(self._simulation)
        layout = BidsFolder if self._bids else NiftiFolder
        sites = [layout(folder, own) for folder, own in zip(folders, names, strict=True)]
        people = list(itertools.chain.from_iterable(names))
        for run, volumes, confounds in self.model.recordings(disturbed=self._bids):
            sites[run.site].write(people[run.person], self.brain, run, volumes, confounds)
            if run.is_last:
                progress()
        _write_participants(folders, self._simulation)


def _write_participants(folders: Sequence[Path], asked: Simulation) -> None:
    """Write the groups of the participants, if there are groups."""
    if asked.groups is None:
        return
    firsts = itertools.accumulate(asked.subjects, initial=0)
    for folder, names, first in zip(folders, site_names(asked), firsts, strict=False):
        asked.groups.write_participants(folder, names, first)


def _write_truth(folder: Path, asked: Simulation, model: SyntheticModel, maps: str) -> None:
    folder.mkdir()
    np.save(folder / "mixing.npy", model.mixing)
    if asked.groups is not None:
        asked.groups.write_truth(folder)
    noise = f", plus noise of standard deviation {model.noise:.6g}" if model.noise else ""
    text = _TRUTH.format(noise=noise, maps=maps, seed=asked.seed)
    (folder / "README.txt").write_text(text, encoding="utf-8")


def site_names(simulation: Simulation) -> list[list[str]]:
    """Return the names of the subjects of every site, numbered across all sites."""
    digits = max(4, len(str(simulation.n_subjects)))
    numbers = itertools.count(1)
    return [[f"sub-{next(numbers):0{digits}}" for _ in range(size)] for size in simulation.subjects]
