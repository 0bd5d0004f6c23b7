"""Simulated studies on disk, with known ground truth, for trials.

Scans are simulated and written one at a time, so a study may be far larger than memory. The seed determines
the scans and the ground truth bit for bit; the keys of the sites are new each time.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from capedjica.data.simulated.groups import AGES, LEVELS, SimulatedGroups
from capedjica.errors import InputError
from capedjica.one_machine.simulated_sites import Scans, SimulatedData, Tables
from capedjica.privacy import validate
from capedjica.site.home import SiteHome
from capedjica.study.analyses import AnalysisTable, IcaTable
from capedjica.study.analyses.group_comparison import ColumnTable, GroupComparisonTable
from capedjica.study.study_file import PrivacyTable, SiteTable, StudyFile, write_study

# Budget of a simulated site, for one study and for all studies.
SITE_EPSILON: Final = 1000.0
TABLES: Final = ("npy", "csv")
IMAGES: Final = ("nifti", "bids")
# Real images are noisy and differ in length; their many voxels need a larger budget.
_USUAL_IMAGES: Final[dict[str, Any]] = {
    "n_components": 6,
    "n_timepoints": (120, 160),
    "noise": 1.0,
    "epsilon": 10.0,
}
# Corresponds to a factor of 20 between standard deviations.
_LARGEST_DIFFERENCE: Final = 3.0
_FOREIGN: Final = {"voxel_size": TABLES, "image_side": IMAGES}
# Upper bound on the files of a site other than its scans, and on the study: settings, keys, study.toml.
_SITE_BYTES: Final = 3 * 8192


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Settings of a simulation.

    Parameters
    ----------
    subjects : tuple of int
        Number of subjects of every site.
    n_components : int
        Number of components R, at least 2.
    n_timepoints : pair of int
        Time points of the shortest and the longest scan; at least R, for images at least R + 40.
    image_side : int
        Pixels per side of the images in tables.
    voxel_size : float
        Voxel size of scans, in mm.
    noise : float
        White noise relative to the signal, as for :func:`capedjica.data.make_synthetic`.
    epsilon, delta : float
        Privacy budget of the study.
    file_format : {"npy", "csv", "nifti", "bids"}
        Tables of pixels, one per participant; or scans, as plain images or as fMRIPrep derivatives.
    seed : int
        Seed of the scans; the privacy noise of a run is never seeded with it.
    group_difference : float, optional
        Difference between the networks of patients and controls (:mod:`capedjica.data.simulated.groups`),
        who are compared by the study; without it, there are no groups.
    """

    subjects: tuple[int, ...]
    n_components: int = 10
    n_timepoints: tuple[int, int] = (200, 200)
    image_side: int = 24
    voxel_size: float = 8.0
    noise: float = 0.0
    epsilon: float = 3.0
    delta: float = 1e-5
    file_format: str = "npy"
    seed: int = 0
    group_difference: float | None = None

    def __post_init__(self) -> None:
        for number, enrolled in enumerate(self.subjects, start=1):
            validate.count(f"subjects of site {number}", enrolled)
        validate.count("components", self.n_components, minimum=2)
        if self.file_format not in (*TABLES, *IMAGES):
            raise InputError(f"format must be npy, csv, nifti or bids, got {self.file_format!r}")
        self._check_timepoints()
        validate.count("image_side", self.image_side)
        validate.count("seed", self.seed, minimum=0)
        validate.nonnegative("noise", self.noise)
        validate.probability("delta", self.delta)
        if self.group_difference is not None and not abs(self.group_difference) <= _LARGEST_DIFFERENCE:
            raise InputError(
                f"group_difference must be a number between -{_LARGEST_DIFFERENCE:g} and "
                f"{_LARGEST_DIFFERENCE:g}, got {self.group_difference:g}"
            )
        if validate.positive("epsilon", self.epsilon) > SITE_EPSILON:
            raise InputError(
                f"epsilon must be at most {SITE_EPSILON:g} (the budget of simulated sites), "
                f"got {self.epsilon:g}"
            )

    @classmethod
    def usual(cls, file_format: str, **given: Any) -> Simulation:
        """Return a simulation with the defaults of its format for all options that are None."""
        for option, formats in _FOREIGN.items():
            if given.get(option) is not None and file_format in formats:
                raise InputError(f"{option} does not apply to format {file_format}; omit it")
        options = {key: value for key, value in given.items() if value is not None}
        return cls(file_format=file_format, **(_USUAL_IMAGES if file_format in IMAGES else {}) | options)

    @property
    def n_subjects(self) -> int:
        """Number of subjects of all sites."""
        return sum(self.subjects)

    @cached_property
    def groups(self) -> SimulatedGroups | None:
        """Groups of the subjects; None without groups."""
        if self.group_difference is None:
            return None
        return SimulatedGroups.draw(self.n_subjects, self.n_components, self.group_difference, self.seed)

    @cached_property
    def data(self) -> SimulatedData:
        """Simulated data in the given format."""
        return Tables(self) if self.file_format in TABLES else Scans(self)

    @property
    def n_bytes(self) -> int:
        """Upper bound on the size of the study on disk."""
        return self.data.n_bytes + (len(self.subjects) + 1) * _SITE_BYTES

    def _check_timepoints(self) -> None:
        least, (shortest, longest) = self.data.shortest, self.n_timepoints
        if not least <= shortest <= longest:
            more = f" plus {least - self.n_components}" if least > self.n_components else ""
            raise InputError(
                f"timepoints must be at least the number of components, {self.n_components}{more}, with the "
                f"shortest first; got {shortest}-{longest}"
            )


def simulate(simulation: Simulation, out: Path, progress: Callable[[], None] = lambda: None) -> None:
    """Write a simulated study into ``out``, completely or not at all.

    The folder contains ``study.toml``, ``sites`` with a folder per site (settings, key and scans), and
    ``truth``. ``progress`` is called after each subject.
    """
    with _whole_folder(out, simulation.n_bytes) as draft:
        data = simulation.data
        data.write_public(draft)
        folders = _make_sites(simulation, draft)
        data.write_truth(draft / "truth")
        data.write_scans(folders, progress)


@contextmanager
def _whole_folder(out: Path, n_bytes: int) -> Iterator[Path]:
    """Yield a hidden folder next to ``out`` that is renamed to ``out`` at the end, or removed on an error."""
    target = out.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        _check_target(out)
        _check_space(n_bytes, out)
        draft.mkdir(parents=True)
        yield draft
        draft.rename(target)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_target(out: Path) -> None:
    """Refuse a folder whose content would be lost."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder; give a folder that does not exist yet")
    if any(out.iterdir()):
        raise InputError(f"{out} is not empty; give a folder that does not exist yet")
    if out.samefile(Path.cwd()):
        raise InputError(f"{out} is the current folder; give a folder that does not exist yet")


def _check_space(n_bytes: int, out: Path) -> None:
    """Refuse a study that would not fit on the disk."""
    folder = next(parent for parent in out.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise InputError(
            f"{out} may need {_size(n_bytes)}, but only {_size(free)} is free on its disk; "
            "reduce the size of the study or give another folder"
        )


def _size(n_bytes: float) -> str:
    """Return a human-readable size."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.0f} PB"


def _analyses(simulation: Simulation) -> tuple[AnalysisTable, ...]:
    """Return the analysis of networks, and the comparison of their amplitudes if there are groups."""
    networks = IcaTable(n_components=simulation.n_components)
    if simulation.groups is None:
        return (networks,)
    columns = ColumnTable(name="group", levels=LEVELS), ColumnTable(name="age", range=AGES)
    comparison = GroupComparisonTable(
        name="groups", networks=networks.kind, values="amplitudes", contrast="group", columns=columns
    )
    return networks, comparison


def _make_sites(simulation: Simulation, folder: Path) -> list[Path]:
    """Write the sites without their scans, and the study; return the folders for the scans."""
    data = simulation.data
    homes = [
        SiteHome.create(
            folder / "sites" / name,
            name,
            SITE_EPSILON,
            SITE_EPSILON,
            simulation.delta,
            data_kind=data.kind,
            simulated=True,
        )
        for name in (f"site-{number}" for number in range(1, len(simulation.subjects) + 1))
    ]
    sites = tuple(
        SiteTable(name=home.settings.name, subjects=enrolled, card=home.card().card)
        for home, enrolled in zip(homes, simulation.subjects, strict=True)
    )
    title = f"Simulated networks of {simulation.n_subjects} people at {len(sites)} sites"
    privacy = PrivacyTable(epsilon=simulation.epsilon, delta=simulation.delta)
    content = StudyFile(
        title=title,
        analyses=_analyses(simulation),
        features=data.features,
        privacy=privacy,
        sites=sites,
    )
    write_study(folder / "study.toml", content)
    return [home.data_path for home in homes]
