"""How the server starts its jobs: as it was started itself, with the same limits."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from capedjica.coordinator.flare import program
from capedjica.flare.program import run_by


class LimitedLauncher(ServerProcessJobLauncher):  # type: ignore[misc]
    """Starts jobs."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """Return FLARE's command, run by :mod:`capedjica.coordinator.flare.program`."""
        return run_by(program.__name__, super().get_command(job_meta, fl_ctx))
