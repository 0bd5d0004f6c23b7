"""Write simulated runs to disk: a folder of images, or BIDS derivatives as fMRIPrep writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.simulated.brain import MOTION, SPACE, Brain, Confounds, Run

TASK: Final = "rest"
_BIDS_VERSION: Final = "1.9.0"
_LARGEST: Final = 4095  # largest 12-bit value of a scanner


def write_volumes(path: Path, brain: Brain, run: Run, volumes: NDArray[np.float32]) -> None:
    """Write a run as scanners do: 16-bit integers and a scaling factor."""
    slope = float(np.abs(volumes).max()) / _LARGEST
    image: Any = brain.image(np.rint(volumes / slope).astype(np.int16), run.repetition_time)
    image.header.set_slope_inter(slope, 0)
    image.to_filename(path)


class NiftiFolder:
    """A folder of images, ``sub-01_task-rest_bold.nii.gz``, with a run number if there are several runs."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def write(
        self, name: str, brain: Brain, run: Run, volumes: NDArray[np.float32], confounds: Confounds
    ) -> None:
        """Write one run; its confounds are not stored."""
        write_volumes(self.folder / f"{run_stem(name, run)}_bold.nii.gz", brain, run, volumes)


class BidsFolder:
    """BIDS derivatives: for each run the images, the mask, the confounds, and their metadata.

    Parameters
    ----------
    folder : Path
        Folder to create.
    names : sequence of str
        Names of the participants, such as ``sub-01``.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        _write_json(folder / "dataset_description.json", _description())
        (folder / "participants.tsv").write_text("\n".join(["participant_id", *names]) + "\n", "utf-8")

    def write(
        self, name: str, brain: Brain, run: Run, volumes: NDArray[np.float32], confounds: Confounds
    ) -> None:
        """Write one run."""
        stem = run_stem(name, run)
        func = self.folder / name / "func"
        func.mkdir(parents=True, exist_ok=True)
        image = f"{stem}_space-{SPACE}_desc"
        write_volumes(func / f"{image}-preproc_bold.nii.gz", brain, run, volumes)
        facts = {"TaskName": TASK, "RepetitionTime": run.repetition_time, "SkullStripped": True}
        _write_json(func / f"{image}-preproc_bold.json", facts)
        brain.mask_image().to_filename(func / f"{image}-brain_mask.nii.gz")
        _write_confounds(func / f"{stem}_desc-confounds_timeseries.tsv", confounds)


def run_stem(name: str, run: Run) -> str:
    """Return the common beginning of the names of a run's files."""
    return f"{name}_task-{TASK}" + ("" if run.number is None else f"_run-{run.number}")


def _description() -> dict[str, Any]:
    return {
        "Name": "Simulated fMRI",
        "BIDSVersion": _BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "capedjica simulate", "Version": version("capedjica")}],
    }


def _write_confounds(path: Path, confounds: Confounds) -> None:
    rows = np.column_stack(list(confounds.values()))
    lines = ["\t".join("n/a" if np.isnan(value) else f"{value:.9g}" for value in row) for row in rows]
    path.write_text("\n".join(["\t".join(confounds), *lines]) + "\n", encoding="utf-8")
    _write_json(path.with_suffix(".json"), {name: _column_facts(name) for name in confounds})


def _column_facts(name: str) -> dict[str, str]:
    """Return a description of a column for readers of the table."""
    if name.startswith(MOTION):
        return {"Description": "Head motion", "Units": "rad" if name.startswith("rot") else "mm"}
    if name.startswith(("csf", "white_matter", "global_signal")):
        return {"Method": "Mean"}
    return {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
