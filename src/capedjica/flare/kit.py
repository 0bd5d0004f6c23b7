"""What kits hold, known to the coordinator who makes them and to the sites that receive them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from capedjica.flare.size_limits import MAX_FRAME

ORGANISATION: Final = "capedjica"
# All that FLARE loads for a job.
SITE_CLASS: Final = "capedjica.site.flare.party.SiteParty"
# In the folder ``local`` of a kit: where its owner's files are.
SETTINGS: Final = "capedjica.json"
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


def write_json(path: Path, content: object) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
