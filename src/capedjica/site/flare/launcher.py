"""How a site starts its jobs: as it was started itself, with the same limits and the same guard."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher

from capedjica.flare.program import run_by
from capedjica.site.flare import program


class GuardedLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts jobs."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """Return FLARE's command, run by :mod:`capedjica.site.flare.program`."""
        return run_by(program.__name__, super().get_command(job_meta, fl_ctx))
