"""A whole study on disk with known truth: sites that hold nobody real, to try everything out on.

Scans are made and written one at a time, so a study may be far larger than memory. The seed decides the scans
and the truth to the last bit; the keys of the sites are new each time.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from capedjica.data.synthetic import SyntheticModel
from capedjica.data.timeseries import write_scan
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.study.site_home import SiteHome
from capedjica.study.study_file import AnalysisTable, PrivacyTable, SiteTable, StudyFile, write_study

# The most that a simulated site may spend, on one study as on all of them.
SITE_EPSILON: Final = 1000.0
# Bytes of one number at most: four of float32, or nine digits with sign, point, exponent and separator.
NUMBER_BYTES: Final = {"npy": 4, "csv": 16}
# What a file may take beyond its content: the header, and the rest of its last block.
_FILE_BYTES: Final = 8192
_TRUTH: Final = """\
What is true about the simulated scans of this study, to compare results with. No analysis reads it.

mixing.npy  A, one row per feature and one column per component: a scan is S A', with the time courses S
            (one column per component) standardised for each subject{noise}.
maps.npy    the same maps as images, one per component.

The scans are in ../sites/*/data, numbered through all sites. They and the truth follow from the seed {seed}.
"""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What to simulate.

    Parameters
    ----------
    subjects : tuple of int
        Subjects of every site.
    n_components : int
        R, at least 2.
    n_timepoints : pair of int
        The shortest and the longest that a scan may be; at least R.
    image_side : int
        Images have image_side^2 pixels.
    noise : float
        White noise, relative to the signal, as for :func:`capedjica.data.make_synthetic`.
    epsilon, delta : float
        What the study may cost.
    file_format : {"npy", "csv"}
        How scans are written.
    seed : int
        Of the scans; the private noise of a run is never seeded by it.
    """

    subjects: tuple[int, ...]
    n_components: int = 10
    n_timepoints: tuple[int, int] = (200, 200)
    image_side: int = 24
    noise: float = 0.0
    epsilon: float = 3.0
    delta: float = 1e-5
    file_format: str = "npy"
    seed: int = 0

    def __post_init__(self) -> None:
        for number, enrolled in enumerate(self.subjects, start=1):
            validate.count(f"subjects of site {number}", enrolled)
        validate.count("components", self.n_components, minimum=2)
        shortest, longest = self.n_timepoints
        if not self.n_components <= shortest <= longest:
            raise InputError(
                f"timepoints must be at least the components, {self.n_components}, and the shortest first; "
                f"got {shortest}-{longest}"
            )
        validate.count("image_side", self.image_side)
        validate.count("seed", self.seed, minimum=0)
        validate.nonnegative("noise", self.noise)
        validate.probability("delta", self.delta)
        if validate.positive("epsilon", self.epsilon) > SITE_EPSILON:
            raise InputError(
                f"epsilon must be at most the {SITE_EPSILON:g} of simulated sites, got {self.epsilon:g}"
            )
        if self.file_format not in NUMBER_BYTES:
            raise InputError(f"format must be {' or '.join(NUMBER_BYTES)}, got {self.file_format!r}")

    @property
    def n_subjects(self) -> int:
        """Subjects of all sites."""
        return sum(self.subjects)

    @property
    def n_features(self) -> int:
        """D, pixels of an image."""
        return self.image_side**2

    @property
    def n_bytes(self) -> int:
        """The most that the study takes on disk."""
        longest_scan = self.n_timepoints[1] * self.n_features * NUMBER_BYTES[self.file_format]
        truth = 2 * 8 * self.n_features * self.n_components
        files = self.n_subjects + 3 * len(self.subjects) + 4
        return self.n_subjects * longest_scan + truth + files * _FILE_BYTES

    def model(self) -> SyntheticModel:
        """Return what the scans are made from."""
        return SyntheticModel.draw(
            self.n_subjects,
            self.n_components,
            self.n_timepoints,
            self.image_side,
            self.seed,
            noise=self.noise,
        )


def simulate(simulation: Simulation, out: Path, progress: Callable[[], None] = lambda: None) -> None:
    """Write the study into ``out``, whole or not at all.

    There will be ``study.toml``, a folder for each of ``sites`` with its settings, its key and its scans, and
    ``truth``. ``progress`` is called after each scan.
    """
    with _whole_folder(out, simulation.n_bytes) as draft:
        folders = _make_sites(simulation, draft)
        model = simulation.model()
        _write_truth(simulation, model, draft / "truth")
        _write_scans(simulation, model, folders, progress)


@contextmanager
def _whole_folder(out: Path, n_bytes: int) -> Iterator[Path]:
    """Give a hidden folder beside ``out`` that becomes it in the end; on any error it is removed."""
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
    """Refuse a folder in which something would be lost."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder")
    if any(out.iterdir()):
        raise InputError(f"{out} is not empty; give a folder that does not exist yet")
    if out.samefile(Path.cwd()):
        raise InputError(f"{out} is the folder you are in; give one that does not exist yet")


def _check_space(n_bytes: int, out: Path) -> None:
    """Refuse what would not fit on the disk."""
    folder = next(parent for parent in out.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise InputError(f"{out} may need {_size(n_bytes)}; {_size(free)} are free on its disk")


def _size(n_bytes: float) -> str:
    """Return a size for people to read."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.0f} PB"


def _make_sites(simulation: Simulation, folder: Path) -> list[Path]:
    """Write the sites without their scans, and the study between them; return where the scans go."""
    homes = [
        SiteHome.create(
            folder / "sites" / name, name, SITE_EPSILON, SITE_EPSILON, simulation.delta, simulated=True
        )
        for name in (f"site-{number}" for number in range(1, len(simulation.subjects) + 1))
    ]
    sites = tuple(
        SiteTable(name=home.settings.name, subjects=enrolled, card=home.card().card)
        for home, enrolled in zip(homes, simulation.subjects, strict=True)
    )
    analysis = AnalysisTable(
        n_components=simulation.n_components,
        n_features=simulation.n_features,
        scan_length=round(sum(simulation.n_timepoints) / 2),
        image_shape=(simulation.image_side, simulation.image_side),
    )
    title = f"Simulated networks of {simulation.n_subjects} people at {len(sites)} sites"
    privacy = PrivacyTable(epsilon=simulation.epsilon, delta=simulation.delta)
    write_study(
        folder / "study.toml", StudyFile(title=title, analysis=analysis, privacy=privacy, sites=sites)
    )
    return [home.data_path for home in homes]


def _write_truth(simulation: Simulation, model: SyntheticModel, folder: Path) -> None:
    folder.mkdir()
    np.save(folder / "mixing.npy", model.mixing)
    np.save(folder / "maps.npy", model.maps)
    noise = f", plus noise of standard deviation {model.noise:.6g}" if model.noise else ""
    (folder / "README.txt").write_text(_TRUTH.format(noise=noise, seed=simulation.seed), encoding="utf-8")


def _write_scans(
    simulation: Simulation, model: SyntheticModel, folders: list[Path], progress: Callable[[], None]
) -> None:
    digits = max(4, len(str(simulation.n_subjects)))
    numbered = enumerate(model.subjects(), start=1)
    for folder, enrolled in zip(folders, simulation.subjects, strict=True):
        folder.mkdir()
        for number, scan in itertools.islice(numbered, enrolled):
            write_scan(folder / f"sub-{number:0{digits}}.{simulation.file_format}", scan)
            progress()
