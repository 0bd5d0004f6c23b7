"""How a party starts its jobs: as it was started itself, with the same limits and the same guard."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from capedjica.engines.flare import party


class GuardedLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts the job of a site."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """Return FLARE's command, run by :mod:`capedjica.engines.flare.party`."""
        return _by_party(super().get_command(job_meta, fl_ctx))


class LimitedLauncher(ServerProcessJobLauncher):  # type: ignore[misc]
    """Starts the job of the server."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """Return FLARE's command, run by :mod:`capedjica.engines.flare.party`."""
        return _by_party(super().get_command(job_meta, fl_ctx))


def _by_party(command: str) -> str:
    python, option, words = command.split(" ", 2)
    return f"{python} {option} {party.__name__} {words}"
