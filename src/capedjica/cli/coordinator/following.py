"""How a run on other machines is followed in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.progress import Progress

if TYPE_CHECKING:
    from capedjica.coordinator.flare.progress import Progress as RunProgress
    from capedjica.coordinator.flare.remote_run import Follower


def follower(progress: Progress) -> Follower:
    """Return what shows how a run on other machines goes: a bar, or lines where there is no terminal."""
    from capedjica.coordinator.flare.remote_run import Follower

    class Lines(Follower):
        """Says what is new, and moves a bar."""

        def __init__(self) -> None:
            self._task = progress.add_task("starting", total=None, status="", start=False)
            self._said: set[str] = set()

        def _say(self, text: str) -> None:
            if text not in self._said:
                self._said.add(text)
                progress.console.print(text)

        def server(self, host: str, port: int, confinement: str) -> None:
            self._say(f"The server is up: sites reach it at {host}:{port}. It is confined by {confinement}.")

        def sites(self, connected: Mapping[str, bool]) -> None:
            for name, there in connected.items():
                if there:
                    self._say(f"Site {name} is connected.")
            missing = [name for name, there in connected.items() if not there]
            progress.update(self._task, description="sites", status=f"waiting for {', '.join(missing)}")

        def progress(self, latest: RunProgress) -> None:
            for name, reason in latest.lost.items():
                self._say(f"Site {name} is lost: {reason}.")
            if latest.n_done:
                progress.start_task(self._task)
            progress.update(
                self._task,
                completed=latest.n_done,
                total=latest.n_total,
                description=f"{latest.stage} {latest.number}/{latest.count}" if latest.n_done else "run",
                status=f"epsilon {latest.epsilon} so far" if latest.n_done else latest.doing,
            )

        def died(self, attempt: int, reason: str) -> None:
            progress.console.print(f"The run was interrupted ({reason}); it goes on where it was.")

    return Lines()
