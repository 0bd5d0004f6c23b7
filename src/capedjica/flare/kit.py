"""The content of kits, shared by the coordinator who creates them and the sites that receive them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from capedjica.errors import InputError
from capedjica.flare.wire import MAX_FRAME
from capedjica.mechanisms.messages import VERSION
from capedjica.securesum.identity import Identity, PublicIdentity

# The version of the protocol; the package version does not matter.
PROTOCOL: Final = VERSION
ORGANISATION: Final = "capedjica"
# The name in the certificate of the coordinator, who alone may send commands to FLARE's server.
COORDINATOR: Final = "coordinator@capedjica.org"
# The only classes that FLARE loads for a job.
SITE_CLASS: Final = "capedjica.site.flare.relay.SiteRelay"
AGGREGATOR_CLASS: Final = "capedjica.coordinator.flare.relay.AggregatorRelay"
_HOST_PATTERN: Final = r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
# The longest name in a certificate.
LONGEST_HOST: Final = 64
# The name under which the coordinator signs.
_COORDINATOR: Final = "coordinator"
_LABEL_PURPOSE: Final = b"capedjica/kit/1\0"

# The files that FLARE needs at a site.
STARTUP: Final = ("client.crt", "client.key", "rootCA.pem")

# Through FLARE, a party can only be queried for its status and be given the one job it knows.
_NOBODY: Final = dict.fromkeys(
    ("clone_job", "download_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr"), "none"
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
# A party and its jobs communicate on a machine that other users may share, so both present certificates.
COMMUNICATION: Final = {
    "allow_adhoc_conns": False,
    "streaming_max_blob_size": MAX_FRAME,
    # FLARE allocates this much for every message, however small, and some of it is freed only by Python's
    # next full garbage collection: with its default of 1 MB the server's job grew by 75 kB per release.
    "streaming_chunk_size": 128 << 10,
    # defence: certificates-on-the-machine-itself
    "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}},
}

_Hexadecimal = Annotated[str, Meta(pattern="^[0-9a-f]*$", max_length=128)]


class Label(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of a ``kit.json``: the site, the study and the coordinator of a kit.

    Attributes
    ----------
    site, study : str
        The site's name and the hash of the study.
    host, port : str and int
        Address of the server.
    protocol : int
        Protocol version of the study.
    coordinator : str
        The coordinator's public key in hexadecimal; a site pins it when it approves.
    signature : str
        The coordinator's signature of all of the above and of the certificates.
    """

    site: str
    study: _Hexadecimal
    host: str
    port: int
    protocol: int
    coordinator: _Hexadecimal
    signature: _Hexadecimal = ""

    @property
    def key(self) -> PublicIdentity:
        """The coordinator's key."""
        try:
            return PublicIdentity(_COORDINATOR, bytes.fromhex(self.coordinator))
        except ValueError:
            raise InputError("kit.json does not contain a valid public key of the coordinator") from None

    def signed(self, identity: Identity, startup: Mapping[str, bytes]) -> Label:
        """Return the label with the coordinator's signature for these files."""
        return msgspec.structs.replace(self, signature=identity.sign(self._content(startup)).hex())

    def is_signed(self, startup: Mapping[str, bytes]) -> bool:
        """Return whether the coordinator named in the label signed it for these files."""
        try:
            return self.key.verify(bytes.fromhex(self.signature), self._content(startup))
        except ValueError:
            return False

    def _content(self, startup: Mapping[str, bytes]) -> bytes:
        plain = msgspec.to_builtins(msgspec.structs.replace(self, signature=""))
        files = {name: hashlib.sha256(startup[name]).hexdigest() for name in STARTUP}
        return _LABEL_PURPOSE + json.dumps([plain, files], sort_keys=True).encode()


def startup_files(kit: Path) -> dict[str, bytes]:
    """Return the key and the certificates in the ``startup`` folder of a kit or a workspace."""
    try:
        return {name: (kit / "startup" / name).read_bytes() for name in STARTUP}
    except OSError as error:
        raise InputError(f"{kit} is not a complete kit: {error}") from None


def check_protocol(protocol: int, what: str) -> None:
    """Refuse files made for another protocol version; the package version does not matter."""
    # defence: version-of-the-protocol
    if protocol != PROTOCOL:
        raise InputError(
            f"{what} was made for version {protocol} of the protocol, this program speaks version {PROTOCOL}:"
            " all parties of a study must speak the same"
        )


def is_host(text: str) -> bool:
    """Return whether a text is a valid host name or address."""
    return len(text) <= LONGEST_HOST and re.fullmatch(_HOST_PATTERN, text) is not None


def project(study: str) -> str:
    """Return the name of a study's project in FLARE."""
    return f"capedjica-{study[:16]}"


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
