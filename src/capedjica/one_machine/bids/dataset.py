"""Input of the BIDS app: preprocessed recordings of a data set, selected by their entities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from capedjica.data.layouts import entity_of, find_people
from capedjica.data.scans import Person, Problem
from capedjica.errors import InputError

# Long names of entities in a filter file, as PyBIDS has them.
_LONG_NAMES: Final = {
    "subject": "sub", "session": "ses", "acquisition": "acq", "ceagent": "ce", "reconstruction": "rec",
    "direction": "dir", "resolution": "res",
}  # fmt: skip
_PREPROCESSED: Final = "*_desc-preproc_bold.nii*"
# Keys of a filter that every recording of the layout matches.
_GIVEN: Final = ("datatype", "suffix", "extension", "desc")


@dataclass(frozen=True)
class Selection:
    """Recordings to analyse; everything by default.

    Attributes
    ----------
    participants, sessions : sequence of str
        Labels, with or without ``sub-`` and ``ses-``.
    task, space : str, optional
        Task and template space.
    filters : dict
        Permitted values of further entities, by their short names.
    """

    participants: Sequence[str] = ()
    sessions: Sequence[str] = ()
    task: str | None = None
    space: str | None = None
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def admits(self, path: Path) -> bool:
        """Return whether a recording belongs to the selected sessions and passes the filters."""
        wanted = dict(self.filters)
        if self.sessions:
            wanted["ses"] = [name.removeprefix("ses-") for name in self.sessions]
        return all(_plain(entity_of(path, key) or "") in values for key, values in wanted.items())


def _plain(value: str) -> str:
    """Return the value of an entity; numbers without leading zeros, as in filter files."""
    return str(int(value)) if value.isdecimal() and value.isascii() else value


def read_filter(path: Path) -> dict[str, list[str]]:
    """Read a filter file as of fMRIPrep: its entry ``bold`` has a value, or a list, for each entity."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not valid JSON"
        raise InputError(f"--bids-filter-file {path} cannot be read: {why}") from None
    wanted = content.get("bold") if isinstance(content, dict) else None
    if not isinstance(wanted, dict):
        raise InputError(f"--bids-filter-file {path}: expected an entry 'bold' with values of entities")
    found: dict[str, list[str]] = {}
    for key, value in wanted.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str | int) for one in values):
            raise InputError(f"--bids-filter-file {path}: {key} must be a text, a number or a list of them")
        if key not in _GIVEN:
            found[_LONG_NAMES.get(str(key), str(key))] = [_plain(str(one)) for one in values]
    return found


def find_derivatives(dataset: Path, given: Path | None = None) -> Path:
    """Return the folder of preprocessed scans: the data set itself, or one of its derivatives."""
    for folder in (given, dataset):
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder} is not a folder; expected fMRIPrep derivatives, or a BIDS data set")
    if given is not None:
        return given
    if _is_preprocessed(dataset):
        return dataset
    found = sorted(path for path in (dataset / "derivatives").glob("*") if _is_preprocessed(path))
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(dataset)) for path in found)
        raise InputError(
            f"{dataset} has several folders of preprocessed scans ({names}); select one by --derivatives"
        )
    if not found:
        raise InputError(
            f"{dataset} contains no preprocessed scans, neither itself nor in derivatives/*; expected "
            f"sub-*/[ses-*/]func/{_PREPROCESSED}, as fMRIPrep writes them"
        )
    return found[0]


def _is_preprocessed(folder: Path) -> bool:
    patterns = (f"sub-*/func/{_PREPROCESSED}", f"sub-*/ses-*/func/{_PREPROCESSED}")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def check_description(folder: Path) -> None:
    """Reject a data set without a valid ``dataset_description.json``."""
    path = folder / "dataset_description.json"
    hint = "or skip this check by --skip-bids-validation"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; BIDS requires it, {hint}") from None
    except ValueError:
        raise InputError(f"{path} is not valid JSON; correct it, {hint}") from None
    for key in ("Name", "BIDSVersion"):
        if not isinstance(content, dict) or not isinstance(content.get(key), str):
            raise InputError(f"{path} has no {key}, which BIDS requires; add it, {hint}")


def select_people(folder: Path, selection: Selection) -> tuple[list[Person], list[Problem]]:
    """Return the selected participants with their selected recordings, and what is wrong with file names."""
    found = find_people(
        "bids", folder, task=selection.task, space=selection.space, participants=selection.participants
    )
    people = [
        replace(person, recordings=tuple(one for one in person.recordings if selection.admits(one.path)))
        for person in found.people
    ]
    chosen = [person for person in people if person.recordings]
    if not chosen:
        raise InputError(f"{folder} contains no recording of the selected sessions and filters")
    files = {one.path for person in chosen for one in person.recordings}
    problems = [problem for problem in found.problems if problem.path in files or not problem.fatal]
    return chosen, problems
