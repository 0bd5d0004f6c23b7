"""Write and read ``reliability.json``, the stability and grade of each map of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from capedjica.algorithms.reliability import GRADES, Reliability
from capedjica.errors import InputError
from capedjica.study.analyses import AnalysisTable, IcaTable
from capedjica.study.study_file import Study, StudyStep

NAME: Final = "reliability.json"
_STATEMENT: Final = (
    "Stability is the predicted correlation of a map with that of another run with fresh noise of the same "
    "size, estimated from the published results alone. A map is good or fair from the values given in "
    "grades, and poor below: a poor map may be noise and should not be presented as a network. A stable map "
    "is not necessarily a correct one."
)
_OF_DIFFERENCE: Final = (
    " For maps that start from a template, it is the stability of their difference from the template; where "
    "that is poor, read the map as the template's."
)
_UNKNOWN: Final = "This method does not estimate the stability of its maps."
_NO_NOISE: Final = "No noise was added. Maps of stability 0 are too weak relative to the others to be found."


class _File(msgspec.Struct):
    stability: list[float] | None


def reliability_json(reliability: Reliability, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the reliability of each map and its explanation, with the names of the maps if there are any."""
    stability = reliability.stability
    said = _STATEMENT + _OF_DIFFERENCE * reliability.of_difference
    known = said if reliability.noisy else _NO_NOISE
    return ({"names": list(names)} if names else {}) | {
        "statement": _UNKNOWN if stability is None else known,
        "grades": GRADES,
        "stability": None if stability is None else np.round(stability, 4).tolist(),
        "grade": reliability.grades,
    }


def read_reliability(run: Path, study: Study, step: StudyStep) -> Reliability:
    """Return the reliability of the maps of one analysis of a run."""
    path = run / study.results_folder(step) / NAME
    try:
        stability = msgspec.json.decode(path.read_bytes(), type=_File).stability
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is malformed: {error}; use the file as the run wrote it") from None
    expected = n_maps(step.table, len(stability or ()))
    if stability is not None and expected != len(stability):
        raise InputError(f"{path} lists {len(stability)} maps, but its study has {expected}")
    values = None if stability is None else np.array(stability)
    guided = bool(getattr(step.table, "template", None))
    return Reliability(expected, values, study.contract.mechanism != "none", guided)


def n_maps(table: AnalysisTable, found: int) -> int:
    """Return the number of maps: the number found if it is valid for the study, else the planned one."""
    if isinstance(table, IcaTable):
        return found if table.fits(found) else table.most_components
    return int(getattr(table, "n_components", found))
