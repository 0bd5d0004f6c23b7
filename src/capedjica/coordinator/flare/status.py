"""How a study on several machines goes, for the coordinator who asks from another terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from capedjica.coordinator.flare.federation import Federation, read_connected
from capedjica.coordinator.flare.progress import Progress, read_progress
from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.certificates import certificate_warning
from capedjica.study.study_file import Study

_RENEW: Final = "new kits for all: capedjica study provision STUDY --again"


def look(study: Study, run: Path) -> dict[str, Any]:
    """Return who is connected and how far the run is, as plain values."""
    try:
        federation = Federation.beside(study)
    except InputError as error:
        return _facts(study, "not sealed", str(error), {}, None)
    server = processes.running(federation.path)
    progress = read_progress(run)
    present = _present(federation, progress) if server is not None else {}
    state, words = _state(progress, server is not None)
    where = f"{federation.seal.host}:{federation.seal.port}"
    found = _facts(study, state, words, present, progress)
    return found | {
        "server": f"{where}, process {server}" if server is not None else f"{where}, not running",
        "warnings": federation_warnings(federation),
    }


def federation_warnings(federation: Federation) -> list[str]:
    """Return which of the coordinator's certificates have ended, or will soon."""
    own = (federation.server_kit, federation.admin_kit)
    return [f"{words}; {_RENEW}" for words in map(certificate_warning, own) if words]


def _present(federation: Federation, progress: Progress | None) -> dict[str, bool]:
    """Return which sites are connected, as the run has written it down."""
    taking_part = () if progress is None or progress.phase != "running" else progress.present
    return read_connected(federation) | dict.fromkeys(taking_part, True)


def _state(progress: Progress | None, server: bool) -> tuple[str, str]:
    """Return how a run stands, in one word for programs and in a sentence for people."""
    if progress is None:
        return "not begun", "not begun; the server waits for sites to connect" if server else "not begun"
    if progress.phase == "complete":
        return "complete", f"complete since {progress.updated}"
    if progress.phase == "stopped":
        return "stopped", f"stopped at {progress.updated}: {progress.reason}"
    if not server:
        return "stopped", f"interrupted; last heard of at {progress.updated}. The same command goes on"
    stage = f"{progress.stage} {progress.number} of {progress.count}; " if progress.n_done else ""
    return "running", f"{stage}now {progress.doing}"


def _facts(
    study: Study, state: str, words: str, present: dict[str, bool], progress: Progress | None
) -> dict[str, Any]:
    return {
        "title": study.content.title,
        "study": study.hash.hex(),
        "state": state,
        "words": words,
        "server": "not sealed",
        "warnings": [],
        "sites": roll_call(study, present, progress),
        "stage": "" if progress is None else progress.stage,
        "n_done": 0 if progress is None else progress.n_done,
        "n_total": sum(stage.count for stage in study.contract.stages),
        "epsilon": "0" if progress is None else progress.epsilon,
    }


def roll_call(study: Study, connected: Mapping[str, bool], progress: Progress | None) -> list[dict[str, Any]]:
    """Return for every site the number of its people, whether it is connected, and whether it has approved.

    A site answers a greeting only if it has approved exactly this study, with as many people as the contract
    says. Why one does not take part is its own affair, and is not told.
    """
    lost: Mapping[str, str] = {} if progress is None else progress.lost
    answered = () if progress is None else progress.present
    return [
        {
            "name": name,
            "enrolled": count,
            "connected": connected.get(name, False),
            "approved": name in answered,
            "lost": lost.get(name, ""),
            "words": _site_words(connected.get(name), name in answered, lost.get(name)),
        }
        for name, count in study.contract.enrolled.items()
    ]


def _site_words(connected: bool | None, approved: bool, lost: str | None) -> str:
    known = {True: "connected", False: "not connected", None: "not known: the server does not run or answer"}
    words = known[connected] + "; has approved" * approved
    return words if lost is None else f"{words}; lost to the run: {lost}"
