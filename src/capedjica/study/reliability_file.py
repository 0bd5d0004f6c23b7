"""How far the maps of a run are to be trusted, as its ``reliability.json`` has it, for whoever shows them."""

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
    "Stability is the correlation that another run with fresh noise of the same size is predicted to have "
    "with a map, told from what was published alone. A map is good or fair from the values of grades, and "
    "poor below: noise may have made it, and it is not to be presented as a network. A stable map is not "
    "for that reason a true one."
)
_OF_DIFFERENCE: Final = (
    " Of maps that start from a template it is that of their difference from it; where that is poor, a map "
    "is to be read as the template's."
)
_UNKNOWN: Final = "This method cannot tell how stable its maps are."
_NO_NOISE: Final = "No noise was added. Maps of stability 0 are too weak beside others to be found."


class _File(msgspec.Struct):
    stability: list[float] | None


def reliability_json(reliability: Reliability, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return how reliable each map is, and what that means; with their names, where they have some."""
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
        raise InputError(f"{path} is not as a run left it: {error}") from None
    expected = n_maps(step.table, len(stability or ()))
    if stability is not None and expected != len(stability):
        raise InputError(f"{path} tells of {len(stability)} maps, its study has {expected}")
    values = None if stability is None else np.array(stability)
    guided = bool(getattr(step.table, "template", None))
    return Reliability(expected, values, study.contract.mechanism != "none", guided)


def n_maps(table: AnalysisTable, found: int) -> int:
    """Return how many maps a study may have: as many as were found, if it may."""
    if isinstance(table, IcaTable):
        return found if table.fits(found) else table.most_components
    return int(getattr(table, "n_components", found))
