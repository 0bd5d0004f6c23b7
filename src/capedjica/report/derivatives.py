"""Names and files of BIDS derivatives, for results of a group and of single participants.

Names are those of other ICA tools: ``components`` for maps, ``mixing`` for time courses and ``metrics`` for a
table with a row per component, as tedana and fMRIPrep write them, ``relmat`` for connectivity as in BEP 17.
BIDS 1.10 has no name for any of these yet. Like other tools, a data set therefore lists them in its
``.bidsignore``; everything else is checked by the validator.

Results of a group are in the folder ``group``. Every sidecar states the privacy guarantee.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from capedjica.algorithms.analysis import ResultTable
from capedjica.algorithms.reliability import Reliability
from capedjica.data.scans import stem
from capedjica.errors import InputError
from capedjica.report.downloads import csv_text
from capedjica.tools.arrays import FloatArray
from capedjica.tools.atomic_files import write_whole, writing
from capedjica.tools.version import __version__

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

BIDS_VERSION: Final = "1.10.0"
GROUP: Final = "group"
# Name of a file, relative to its data set, and its content.
File = tuple[str, bytes]
# Entities in the order in which BIDS writes them.
_ENTITIES: Final = (
    "sub", "ses", "task", "acq", "ce", "rec", "dir", "run", "echo", "part", "space", "res", "desc",
)  # fmt: skip
# Entities of the images of one run, rather than of the run itself.
_OF_IMAGES: Final = ("space", "res", "desc")
# The names that BIDS does not know yet, and pages.
_IGNORED: Final = (
    f"/{GROUP}", "*.html", "*_components.*", "*_mixing.*", "*_spectra.*", "*_relmat.*", "*_metrics.*",
)  # fmt: skip
_CITE: Final = (
    "Imtiaz H, Mohammadi J, Silva R, Baker B, Plis SM, Sarwate AD, Calhoun V. A Correlated Noise-Assisted "
    "Decentralized Differentially Private Estimation Protocol, and its Application to fMRI Source "
    "Separation. IEEE Transactions on Signal Processing 69, 2021."
)
# Stated in the sidecars of single participants.
INDIVIDUAL: Final[Mapping[str, Any]] = {
    "Private": False,
    "Statement": "NOT PRIVATE: this file describes a single participant and must not leave the site.",
}


# Names


def entities_of(path: Path) -> dict[str, str]:
    """Return the entities in the name of a file, by their short names; unknown ones are excluded.

    >>> entities_of(Path("sub-01_task-rest_space-MNI152Lin_desc-preproc_bold.nii.gz"))
    {'sub': '01', 'task': 'rest', 'space': 'MNI152Lin', 'desc': 'preproc'}
    """
    found = (part.split("-", 1) for part in stem(path).split("_") if "-" in part)
    return {key: value for key, value in found if key in _ENTITIES}


def entities_of_run(path: Path) -> dict[str, str]:
    """Return the entities that identify a run, without those of one of its images."""
    return {key: value for key, value in entities_of(path).items() if key not in _OF_IMAGES}


def shared_entities(paths: Iterable[Path], without: Sequence[str] = ("run", "res", "desc")) -> dict[str, str]:
    """Return the entities that all files have in common."""
    first, *others = [entities_of(path) for path in paths]
    return {
        key: value
        for key, value in first.items()
        if key not in without and all(other.get(key) == value for other in others)
    }


def named(entities: Mapping[str, str | None], suffix: str) -> str:
    """Return the name of a file without its extension, with its entities in the order of BIDS.

    >>> named({"desc": "ICA", "space": "MNI152Lin", "task": "rest", "run": None}, "components")
    'task-rest_space-MNI152Lin_desc-ICA_components'
    """
    given = [f"{key}-{entities[key]}" for key in _ENTITIES if entities.get(key)]
    return "_".join([*given, suffix])


def label(text: str) -> str:
    """Return a name as the value of an entity, which has letters and digits only.

    >>> label("mean connectivity")
    'meanConnectivity'
    """
    words: list[str] = re.findall("[0-9A-Za-z]+", text) or ["unnamed"]
    first, *others = words
    return first + "".join(word[0].upper() + word[1:] for word in others)


def component_columns(count: int) -> list[str]:
    """Return the names of components in tables."""
    return [f"component-{number:02d}" for number in range(1, count + 1)]


# Files


def json_file(content: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def matrix_files(
    name: str, columns: Sequence[str], values: FloatArray, about: Mapping[str, Any]
) -> Iterator[File]:
    """Yield a table of numbers and its sidecar."""
    buffer = io.BytesIO()
    np.savetxt(buffer, values, fmt="%.8g", delimiter="\t", header="\t".join(columns), comments="")
    yield f"{name}.tsv", buffer.getvalue()
    yield f"{name}.json", json_file({**about, "Columns": list(columns)})


def table_files(name: str, table: ResultTable, about: Mapping[str, Any]) -> Iterator[File]:
    """Yield a table of results and its sidecar; what could not be estimated is ``n/a``, as in BIDS."""
    rows = [[_cell(value) for value in row] for row in table.rows]
    yield f"{name}.tsv", csv_text(table.columns, rows, "\t").encode()
    yield f"{name}.json", json_file({"Description": table.caption, **about, "Columns": list(table.columns)})


def _cell(value: Any) -> Any:
    missing = value is None or (isinstance(value, float) and not np.isfinite(value))
    return "n/a" if missing else value


def maps_files(
    name: str, maps: FloatArray, image: Nifti1Image | None, about: Mapping[str, Any]
) -> Iterator[File]:
    """Yield maps (R, D) as an image, or as a table with a row per feature if features have no positions."""
    if image is None:
        yield from matrix_files(name, component_columns(len(maps)), maps.T, about)
        return
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    yield f"{name}.nii.gz", gzip.compress(image.to_bytes(), mtime=0)
    yield f"{name}.json", json_file(about)


def metrics_files(
    name: str, reliability: Reliability, names: Sequence[str], about: Mapping[str, Any]
) -> Iterator[File]:
    """Yield the table of components: name, stability and grade of each."""
    count = reliability.n_maps
    known = reliability.known
    stability = reliability.stability if known else None
    rows = [
        [
            column,
            names[index] if names else "n/a",
            "n/a" if stability is None else float(stability[index]),
            reliability.grades[index] if known and reliability.grades else "n/a",
        ]
        for index, column in enumerate(component_columns(count))
    ]
    yield f"{name}.tsv", csv_text(list(_METRICS), rows, "\t").encode()
    yield (
        f"{name}.json",
        json_file({**about, **{key: {"Description": said} for key, said in _METRICS.items()}}),
    )


_METRICS: Final = {
    "component": "Volume of the image of components, or column of its table, counted from 1.",
    "name": "Name of the network in the template.",
    "stability": "Predicted correlation of the map with that of another run with fresh noise; with a "
    "template, that of their differences from the template.",
    "grade": "good (stability at least 0.9), fair (at least 0.7) or poor: a poor map may be noise.",
}


def privacy_of(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the guarantee for sidecars from the fields of a ``privacy.json``."""
    return {
        "Private": statement["private"],
        "Epsilon": statement["epsilon"],
        "Delta": statement["delta"],
        "Mu": statement["mu"],
        "Unit": statement["neighbour"],
        "Mechanism": statement["mechanism"],
        "Statement": str(statement["statement"]).splitlines()[0],
        "Against": statement["against"],
        "NotAgainst": statement["not_against"],
        "NotCovered": list(statement["not_covered"]),
    }


# Data sets


def frame_files(title: str, readme: str, links: Mapping[str, str] | None = None) -> Iterator[File]:
    """Yield the files of every data set of derivatives.

    Parameters
    ----------
    title : str
        Name of the data set.
    readme : str
        Its description.
    links : dict, optional
        Addresses of the data sets that sidecars refer to as ``bids:NAME:path``.
    """
    about: dict[str, Any] = {
        "Name": title,
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [
            {
                "Name": "capedjica",
                "Version": __version__,
                "Description": "Differentially private decentralized joint ICA of fMRI",
            }
        ],
        "HowToAcknowledge": f"Please cite: {_CITE}",
    }
    if links:
        about["SourceDatasets"] = [{"URL": address} for address in links.values()]
        about["DatasetLinks"] = dict(links)
    yield "dataset_description.json", json_file(about)
    yield "README.md", readme.encode()
    yield ".bidsignore", "".join(f"{pattern}\n" for pattern in _IGNORED).encode()


def write_files(folder: Path, files: Iterable[File], *, mode: int = 0o666) -> None:
    """Write files below a folder that exists, each atomically; raise OSError if one cannot be written.

    Folders that are created for private files are private, too.
    """
    for name, content in files:
        for place in reversed(Path(name).parents[:-1]):
            (folder / place).mkdir(mode=0o777 if mode & 0o077 else 0o700, exist_ok=True)
        write_whole(folder / name, content, mode=mode)


@contextmanager
def whole_folder(folder: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Yield a hidden folder to write to, which takes the place of ``folder`` when it is complete.

    An error, or an interruption, removes it and leaves an earlier ``folder`` as it was.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        draft = place / "new"
        with writing(folder):
            draft.mkdir(mode=mode)
        yield draft
        with writing(folder):
            if folder.exists():
                folder.rename(place / "old")
            draft.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_new(folder: Path) -> None:
    """Refuse a folder that exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists and is not empty; give a new folder")


def read_table(path: Path) -> FloatArray:
    """Return the numbers of a table; raise ValueError if it is not one."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    values = np.array([[float(cell) for cell in row] for row in rows])
    if values.shape != (len(rows), len(header)):
        raise ValueError("expected one value per column in every row")
    return values
