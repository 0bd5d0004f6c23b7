"""How far a run is, in a small file that another process can read at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from capedjica.coordinator.run.watcher import Step, Watcher
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.history import Event
from capedjica.privacy.wording import NOT_PRIVATE, round_up
from capedjica.study.study_file import Study
from capedjica.tools.atomic_files import write_whole

_NAME: Final = "progress.json"
# A faster run is not written down more often.
_SECONDS: Final = 0.25

Phase = Literal["joining", "running", "complete", "stopped"]


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a run is.

    Attributes
    ----------
    phase : {"joining", "running", "complete", "stopped"}
        Whether it waits for sites, goes on, or came to an end.
    stage, number, count, n_done, n_total : str and int
        The last mean: its label, the how many-th of how many of its stage, and of all.
    doing : str
        What the aggregator waits for.
    present : tuple of str
        The sites taking part.
    epsilon : str
        Spent so far, or why none is stated.
    lost : dict
        Sites that were given up, and why.
    reason, exit_code : str and int
        Why it stopped.
    updated : str
        When this was written.
    """

    phase: Phase
    stage: str = ""
    number: int = 0
    count: int = 0
    n_done: int = 0
    n_total: int = 0
    doing: str = "waiting for sites to join"
    present: tuple[str, ...] = ()
    epsilon: str = "0"
    lost: Mapping[str, str] = {}
    reason: str = ""
    exit_code: int = 0
    updated: str = ""


def read_progress(run: Path) -> Progress | None:
    """Return how far the run in a folder is; None where none was begun on a server."""
    file = run / _NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=Progress)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} does not tell how far a run is: {error}") from None


class Reporter(Watcher):
    """Writes down how a run goes, in its folder.

    ``lost`` returns the sites that were given up, and ``follow`` is told whenever it is written down.
    """

    def __init__(
        self,
        run: Path,
        study: Study,
        lost: Callable[[], Mapping[str, str]],
        follow: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._run, self._study, self._lost, self._follow = run, study, lost, follow
        self._written = 0.0
        total = sum(stage.count for stage in study.contract.stages)
        self._latest = Progress(phase="joining", n_total=total)

    def event(self, event: Event) -> None:
        """Learn what the aggregator is about to do, and with whom."""
        self._latest = msgspec.structs.replace(self._latest, doing=event.doing, present=event.present)
        self._write_now_and_then()

    def step(self, step: Step) -> None:
        """Learn that a mean was made."""
        epsilon = round_up(step.privacy.spent_epsilon) if step.privacy.private else NOT_PRIVATE
        self._latest = msgspec.structs.replace(
            self._latest,
            phase="running",
            stage=step.label,
            number=step.number,
            count=step.count,
            n_done=step.n_done,
            epsilon=epsilon,
        )
        self._write_now_and_then()

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def end(self, phase: Phase, reason: str = "", exit_code: int = 0) -> str:
        """Write how it ended, and return it; where it was stopped, also why sites were given up."""
        lost = "; ".join(f"{name}: {why}" for name, why in sorted(self._lost().items()))
        words = f"{reason}. Given up were: {lost}" if reason and lost else reason
        self._latest = msgspec.structs.replace(self._latest, phase=phase, reason=words, exit_code=exit_code)
        self.write()
        return words

    def write(self) -> None:
        """Write it whole; on a full disk it is lost, and nothing depends on it."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.structs.replace(self._latest, lost=dict(self._lost()), updated=now)
        try:
            write_whole(self._run / _NAME, msgspec.json.encode(content))
        except OSError:
            return
        finally:
            self._follow(content)
        self._written = time.monotonic()
