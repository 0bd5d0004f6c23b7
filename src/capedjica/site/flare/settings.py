"""What FLARE may do at a site: decided by the site's own program, never by the kit that it was given.

FLARE's settings name classes to be loaded, those of logs included, and say who may send code and commands. A
kit comes from the coordinator, who is trusted with none of that: a site takes from it a key, certificates,
where the server is, and the study.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from capedjica.flare.kit import AUTHORIZATION, COMMUNICATION, SETTINGS, SITE_CLASS, write_json
from capedjica.mechanisms.site.private_log import PRIVATE_LOGS

_COMPONENTS: Final = {
    "resource_manager": (
        "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
        {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0},
    ),
    "resource_consumer": (
        "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
        {},
    ),
    "process_launcher": (
        "capedjica.site.flare.launcher.GuardedLauncher",
        {},
    ),
}
_RESOURCES: Final = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    # defence: one-class-at-a-site
    "class_allow_list": [SITE_CLASS],
    # defence: logs-stay-at-a-site
    "allow_log_streaming": False,
    "client": {"retry_timeout": 30},
    "components": [
        {"id": name, "path": path, "args": arguments} for name, (path, arguments) in _COMPONENTS.items()
    ],
}
_LOGGING: Final = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "baseFormatter": {
            "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
            "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
        }
    },
    "handlers": {
        "consoleHandler": {
            "class": "logging.StreamHandler",
            "level": "WARNING",
            "formatter": "baseFormatter",
            "stream": "ext://sys.stdout",
        },
        "logFileHandler": {
            "class": "logging.handlers.RotatingFileHandler",
            "level": "DEBUG",
            "formatter": "baseFormatter",
            "filename": "log.txt",
            "mode": "a",
            "maxBytes": 20 << 20,
            "backupCount": 10,
        },
        "nowhereHandler": {"class": "logging.NullHandler"},
    },
    "loggers": {
        "root": {"level": "INFO", "handlers": ["consoleHandler", "logFileHandler"]},
        # What may name a patient or the file of a scan: the site's own log has the first, nobody the second.
        # defence: people-stay-out-of-flares-logs
        PRIVATE_LOGS: {"level": "INFO", "handlers": ["nowhereHandler"], "propagate": False},
        # defence: no-warnings-in-flares-logs
        "py.warnings": {"level": "WARNING", "handlers": ["nowhereHandler"], "propagate": False},
    },
}


def write_settings(kit: Path, home: Path) -> None:
    """Write what FLARE may do with a kit, and where the site's own folder is."""
    local = kit / "local"
    local.mkdir(mode=0o700)
    write_json(local / "resources.json", _RESOURCES)
    write_json(local / "authorization.json", AUTHORIZATION)
    write_json(local / "log_config.json", _LOGGING)
    write_json(local / "comm_config.json", COMMUNICATION)
    write_json(local / SETTINGS, {"site": str(home.absolute())})
    for file in local.iterdir():
        file.chmod(0o600)
