"""Progress of a run, in a small file that other processes can read at any time."""

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
# Minimum interval between two writes.
_SECONDS: Final = 0.25

Phase = Literal["joining", "running", "complete", "stopped"]


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of a run.

    Attributes
    ----------
    phase : {"joining", "running", "complete", "stopped"}
        Whether the run waits for sites, is running, or has ended.
    stage, number, count, n_done, n_total : str and int
        The last mean: its label, its number within the stage, the number of means of the stage, and the
        same two numbers over all stages.
    doing : str
        Current action of the aggregator.
    present : tuple of str
        Participating sites.
    epsilon : str
        Epsilon spent so far, or the reason why none is stated.
    lost : dict
        Lost sites, with reasons.
    reason, exit_code : str and int
        Reason why the run stopped.
    updated : str
        Time of writing.
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
    """Return the progress of the run in a folder; None if no run was started on a server."""
    file = run / _NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=Progress)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not a valid progress file of a run: {error}") from None


class Reporter(Watcher):
    """Watcher that writes the progress of a run into its folder.

    ``lost`` returns the lost sites; ``follow`` is called after every write.
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
        """Record the next action of the aggregator, and the sites involved."""
        self._latest = msgspec.structs.replace(self._latest, doing=event.doing, present=event.present)
        self._write_now_and_then()

    def step(self, step: Step) -> None:
        """Record that a mean was released."""
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
        """Write and return the reason for the end of a run, with the reasons why sites were lost."""
        lost = "; ".join(f"{name}: {why}" for name, why in sorted(self._lost().items()))
        words = f"{reason}. Lost sites: {lost}" if reason and lost else reason
        self._latest = msgspec.structs.replace(self._latest, phase=phase, reason=words, exit_code=exit_code)
        self.write()
        return words

    def write(self) -> None:
        """Write the progress file atomically; errors are ignored, as nothing depends on the file."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.structs.replace(self._latest, lost=dict(self._lost()), updated=now)
        try:
            write_whole(self._run / _NAME, msgspec.json.encode(content))
        except OSError:
            return
        finally:
            self._follow(content)
        self._written = time.monotonic()
