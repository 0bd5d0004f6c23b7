"""How a site starts its job."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher

from capedjica.engines.flare import party


class GuardedLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts the job of a site as its client was started: with the same limits and the same guard."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """Return FLARE's command, run by :mod:`capedjica.engines.flare.party`."""
        python, option, words = super().get_command(job_meta, fl_ctx).split(" ", 2)
        return f"{python} {option} {party.__name__} {words}"
