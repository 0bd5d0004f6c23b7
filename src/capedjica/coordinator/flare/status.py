"""Status of a study on several machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from capedjica.coordinator.drafts import sealed_path
from capedjica.coordinator.flare.federation import FOLDER, Federation, read_connected
from capedjica.coordinator.flare.progress import Progress, read_progress
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.run_status import made
from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.certificates import certificate_warning
from capedjica.study.study_file import Study

_RENEW: Final = "create new kits for all parties with: capedjica study provision STUDY --again"


def look(study: Study, run: Path) -> dict[str, Any]:
    """Return the connected sites and the progress of the run, as plain values."""
    try:
        federation = Federation.beside(study)
    except InputError as error:
        return _without_kits(study, run, str(error))
    server = processes.running(federation.path)
    progress = read_progress(run)
    present = _present(federation, progress) if server is not None else {}
    state, words = _state(progress, server is not None)
    where = f"{federation.seal.host}:{federation.seal.port}"
    found = _facts(study, state, words, present, progress)
    # The progress file is written now and then.
    return (
        found
        | made(study, RunFolder(run))
        | {
            "server": f"{where}, process {server}" if server is not None else f"{where}, not running",
            "warnings": federation_warnings(federation),
        }
    )


def _without_kits(study: Study, run: Path, reason: str) -> dict[str, Any]:
    """Return the status of a study whose kits were never created, or were removed after its run."""
    if sealed_path(study.folder).exists() or RunFolder(run).check(study) is None:
        return _facts(study, "not sealed", reason, {}, None)
    progress = read_progress(run)
    state, words = _state(progress, False)
    found = _facts(study, state, words, {}, progress) | made(study, RunFolder(run))
    return found | {"server": f"none: no {FOLDER} folder with its study"}


def federation_warnings(federation: Federation) -> list[str]:
    """Return warnings about the coordinator's certificates that have expired or will expire soon."""
    own = (federation.server_kit, federation.admin_kit)
    return [f"{words}; {_RENEW}" for words in map(certificate_warning, own) if words]


def _present(federation: Federation, progress: Progress | None) -> dict[str, bool]:
    """Return which sites are connected, as recorded by the run."""
    taking_part = () if progress is None or progress.phase != "running" else progress.present
    return read_connected(federation) | dict.fromkeys(taking_part, True)


def _state(progress: Progress | None, server: bool) -> tuple[str, str]:
    """Return the state of a run, as a keyword for programs and as text."""
    if progress is None:
        return "not begun", "not started; the server waits for sites to connect" if server else "not started"
    if progress.phase == "complete":
        return "complete", f"complete since {progress.updated}"
    if progress.phase == "stopped":
        return "stopped", f"stopped at {progress.updated}: {progress.reason}"
    if not server:
        return "stopped", f"interrupted; last update at {progress.updated}. Run the same command to resume"
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
    """Return the number of participants of every site, whether it is connected, and whether it has approved.

    A site answers a greeting only if it has approved exactly this study, with as many participants as in the
    contract. A site's reason for not participating is private and not included.
    """
    lost: Mapping[str, str] = {} if progress is None else progress.lost
    answered = () if progress is None else progress.present
    over = progress is not None and progress.phase == "complete"
    return [
        {
            "name": name,
            "enrolled": count,
            "connected": connected.get(name, False),
            "approved": name in answered,
            "lost": lost.get(name, ""),
            "words": _site_words(connected.get(name), name in answered, lost.get(name), over),
        }
        for name, count in study.contract.enrolled.items()
    ]


def _site_words(connected: bool | None, approved: bool, lost: str | None, over: bool) -> str:
    if over:
        return "took part" if lost is None and approved else f"did not finish: {lost or 'it never joined'}"
    known = {True: "connected", False: "not connected", None: "not known: no running server answers"}
    words = known[connected] + "; has approved" * approved
    return words if lost is None else f"{words}; lost during the run: {lost}"
