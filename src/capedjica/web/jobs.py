"""Actions of the web pages: one command at a time, with its progress and outcome kept for the page."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.web.commands import Commands, Finished, Running, shown

_MOST_KEPT: Final = 50


class StaleError(InputError):
    """A page that is older than the latest action, or another action under way."""


@dataclass
class Job:
    """A command that was started from a page.

    Attributes
    ----------
    title : str
        What it does, in words.
    command : str
        The equivalent command.
    back : str
        The page to which it belongs.
    returns : bool
        Whether the outcome is shown on that page.
    """

    title: str
    command: str
    back: str
    returns: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    finished: Finished | None = None
    running: Running | None = None
    blocking: bool = True
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def finished_well(self) -> bool:
        """Whether it is done, and what it printed is of use."""
        return self.finished is not None and (self.finished.ok or self.finished.json() is not None)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return (self.ended or time.monotonic()) - self.began


class Desk:
    """Starts actions and keeps their outcomes.

    Every form carries the number of actions that had been started when its page was made. A form of an older
    page is refused: what it showed may have changed.
    """

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.number = 0
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(
        self,
        title: str,
        arguments: Sequence[str],
        *,
        back: str,
        seen: str,
        display: Sequence[str] | None = None,
        returns: bool = False,
        then: Callable[[Finished], None] | None = None,
        log: Path | None = None,
    ) -> Job:
        """Start a command; ``display`` is what is shown of it, where that is not the same.

        With ``returns`` its page leads back when it is done: its output is shown there. With ``log`` the
        command goes on after the pages are closed, and does not keep others waiting.
        """
        with self._lock:
            # defence: web-one-action-at-a-time
            if self.under_way is not None:
                raise StaleError(
                    "another action is running; nothing was changed. Wait until it has ended, and try again"
                )
            # defence: web-pages-that-are-old
            if seen != str(self.number):
                raise StaleError(
                    "another action was carried out after this page was loaded, here or in another window; "
                    "nothing was changed. Reload the page and try again"
                )
            self.number += 1
            job = Job(title, shown(display or arguments), back, returns)
            running = self.commands.launch(arguments, log)
            job.running, job.blocking = running, log is None
            self._jobs[job.id] = job
            for old in list(self._jobs)[:-_MOST_KEPT]:
                del self._jobs[old]
        threading.Thread(target=self._finish, args=(job, running, then), daemon=True).start()
        return job

    def _finish(self, job: Job, running: Running, then: Callable[[Finished], None] | None) -> None:
        try:
            job.finished = running.result()
            if then is not None:
                then(job.finished)
        except Exception as error:
            # No traceback: its lines may quote a participant's name.
            job.finished = Finished(1, "", f"an unexpected {type(error).__name__} in the web pages")
        finally:
            job.ended = time.monotonic()
            job.done.set()

    def find(self, name: str) -> Job | None:
        """Return a job by its id."""
        return self._jobs.get(name)

    @property
    def under_way(self) -> Job | None:
        """The action under way, if any."""
        return next((job for job in self._jobs.values() if job.blocking and not job.done.is_set()), None)
