"""What FLARE may do at a site: decided by the site's own program, never by the kit that it was given.

FLARE's settings name classes to be loaded, those of logs included, and say who may send code and commands. A
kit comes from the coordinator, who is trusted with none of that: a site takes from it a key, certificates,
where the server is, and the study.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from capedjica.engines.flare.carriage import MAX_FRAME
from capedjica.study.federated.federation import SETTINGS, SITE_CLASS, write_json

_HOST_PATTERN: Final = r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
# The longest name in a certificate.
LONGEST_HOST: Final = 64

# All that FLARE has to be given at a site.
STARTUP: Final = ("client.crt", "client.key", "fed_client.json", "rootCA.pem")

# Whoever talks to a party through FLARE may see that it is there and hand it the one job it knows.
_NOBODY: Final = dict.fromkeys(
    ("clone_job", "download_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr"),
    # defence: no-commands-at-a-site
    "none",
)
AUTHORIZATION: Final = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {"submit_job": "any", "manage_job": "any", "view": "any", **_NOBODY},
        "org_admin": {},
        "lead": {},
        "member": {},
    },
}
# A party and its jobs talk on the machine itself, where others may have accounts: each shows its certificate.
COMMUNICATION: Final = {
    "allow_adhoc_conns": False,
    # Memory for a whole message is reserved when its first piece comes.
    # defence: announced-messages-are-limited
    "streaming_max_blob_size": MAX_FRAME,
    # defence: certificates-on-the-machine-itself
    "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}},
}
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
        "capedjica.engines.flare.launcher.GuardedLauncher",
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
        "capedjica.site": {"level": "INFO", "handlers": ["nowhereHandler"], "propagate": False},
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


def is_host(text: str) -> bool:
    """Whether this can be the name or the address of a machine."""
    return len(text) <= LONGEST_HOST and re.fullmatch(_HOST_PATTERN, text) is not None


def connection(site: str, study: str, host: str, port: int) -> dict[str, Any]:
    """Return how a site reaches the server: the whole content of its ``fed_client.json``."""
    service = {"target": f"{host}:{port}", "scheme": "tcp"}
    return {
        "format_version": 2,
        "servers": [{"name": project(study), "service": service, "identity": host}],
        "client": {
            "ssl_private_key": "client.key",
            "ssl_cert": "client.crt",
            "ssl_root_cert": "rootCA.pem",
            "fqsn": site,
            "is_leaf": True,
            # defence: encryption-at-a-site
            "connection_security": "mtls",
        },
    }


def project(study: str) -> str:
    """Return the name of a study's project in FLARE."""
    return f"capedjica-{study[:16]}"
