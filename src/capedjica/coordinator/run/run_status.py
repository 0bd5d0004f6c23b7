"""Read-only status of a run on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from capedjica.coordinator.run.journal import read_records
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.site_standing import requested
from capedjica.mechanisms.aggregator.history import privacy_statement
from capedjica.privacy.wording import NOT_PRIVATE, round_up
from capedjica.study.study_file import Study
from capedjica.tools.locks import is_held

_NOT_BEGUN: Final = (
    "not started and not sealed: there is no run in {run} (to look elsewhere: --out). To run it on this "
    "machine: capedjica run; to run it at sites on other machines: capedjica study provision"
)


def look(study: Study, run: Path) -> dict[str, Any]:
    """Return the progress of a run as plain values, in the same form as for a run on several machines."""
    folder = RunFolder(run)
    state = folder.state()
    if state is None:
        return _facts(study, "not sealed", _NOT_BEGUN.format(run=run), "not known before the run starts")
    folder.check(study)
    here = "a folder on this machine"
    if state.complete:
        phase, words = "complete", f"complete; it took {state.seconds:.0f} s"
    elif is_held(folder.lock_path):
        phase, words = "running", f"running since {state.started}"
    else:
        phase, words = "stopped", "interrupted; run the same command to resume"
    return _facts(study, phase, words, here) | made(study, folder)


def made(study: Study, folder: RunFolder) -> dict[str, Any]:
    """Return the releases in the journal, and the budget requested so far; nothing before the run."""
    contract = study.contract
    if not folder.journal_path.exists():
        return {}
    records = read_records(folder.journal_path, contract)
    releases = [release for record in records for release in record.releases]
    spent = privacy_statement(contract, releases, requested(folder, contract))
    return {
        "stage": contract.stages[records[-1].stage].query.label if records else "",
        "n_done": len(records),
        "epsilon": round_up(spent.spent_epsilon) if spent.private else NOT_PRIVATE,
    }


def _facts(study: Study, state: str, words: str, of_sites: str) -> dict[str, Any]:
    there = state != "not sealed"
    return {
        "title": study.content.title,
        "study": study.hash.hex(),
        "state": state,
        "words": words,
        "server": "none: all sites are on this machine" if there else "not sealed",
        "warnings": [],
        "sites": [
            {"name": name, "enrolled": count, "connected": there, "approved": there, "words": of_sites}
            for name, count in study.contract.enrolled.items()
        ],
        "stage": "",
        "n_done": 0,
        "n_total": sum(stage.count for stage in study.contract.stages),
        "epsilon": "0",
    }
