"""The workspace folder of FLARE, written by FLARE's own provisioner with additional settings.

A site writes its own workspace with its installed version of FLARE. The coordinator provides only a key,
certificates and the server address, and no code.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec

from capedjica.errors import InputError
from capedjica.flare.kit import AUTHORIZATION, COMMUNICATION, ORGANISATION, write_json
from capedjica.flare.wire import SETTINGS
from capedjica.tools.confinement.carrier import Confinement

SCHEME: Final = "tcp"


def flare_folders(
    project: str,
    host: str,
    port: int,
    sites: Iterable[str],
    scratch: Path,
    admin: str | None = None,
) -> Path:
    """Create the folders of a server and of sites with FLARE's provisioner; return their parent folder.

    If ``admin`` is given, certificates are also created, and ``scratch/PROJECT/state`` holds the root key.
    """
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    # defence: encryption-at-the-server
    description = Project(project, "capedjica", props={"api_version": 3})
    # defence: certificates-of-sites
    description.set_server(host, ORGANISATION, {"fed_learn_port": port, "admin_port": port})
    builders = [WorkspaceBuilder(), StaticFileBuilder("config", scheme=SCHEME)]
    if admin is not None:
        builders.append(CertBuilder())
        description.add_admin(admin, ORGANISATION, {"role": "project_admin"})
    for name in sites:
        description.add_client(name, ORGANISATION, {"allow_log_streaming": False})
    # The output of FLARE's provisioner is captured instead of printed.
    said, logger = StringIO(), logging.Logger("provisioner", logging.ERROR)
    logger.addHandler(logging.StreamHandler(said))
    if Provisioner(str(scratch), builders).provision(description, logger=logger).get(CtxKey.BUILD_ERROR):
        words = "; ".join(said.getvalue().splitlines()) or "it gave no reason"
        raise InputError(f"FLARE's folders could not be created: {words}")
    return scratch / project / "prod_00"


def restrict(workspace: Path, allowed: str) -> dict[str, Any]:
    """Configure FLARE to run one class, accept no commands and stream no logs; return its resources.

    These are documented settings of FLARE. Privacy does not depend on them.
    """
    local = workspace / "local"
    resources: dict[str, Any] = msgspec.json.decode((local / "resources.json.default").read_bytes())
    resources["class_allow_list"] = [allowed]
    resources["allow_log_streaming"] = False
    resources["components"] = [
        one for one in resources["components"] if one["id"] not in ("site_log_streamer", "log_receiver")
    ]
    logs: dict[str, Any] = msgspec.json.decode((local / "log_config.json.default").read_bytes())
    # One rotated log file; printed output is handled by the process that started FLARE.
    logs["handlers"]["consoleHandler"]["level"] = "CRITICAL"
    logs["loggers"]["root"]["handlers"] = ["consoleHandler", "logFileHandler"]
    write_json(local / "log_config.json", logs)
    for file in (*local.glob("*.default"), *local.glob("*.sample")):
        file.unlink()
    write_json(local / "resources.json", resources)
    write_json(local / "authorization.json", AUTHORIZATION)
    write_json(local / "comm_config.json", COMMUNICATION)
    return resources


def point_to(workspace: Path, socket: Path, closed: Iterable[Path] = ()) -> None:
    """Write the settings of the carrier in a workspace: the path of the socket that it connects to.

    ``closed`` lists the paths that the carrier must not be able to open; it tests this before connecting.
    The folder may have belonged to the carrier before, so links in it are not followed.
    """
    settings = {"socket": str(socket), "closed": [str(path.absolute()) for path in closed]}
    try:
        _write_settings(workspace, json.dumps(settings, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{workspace} cannot be prepared for the carrier: {error.strerror}") from None


def _write_settings(workspace: Path, text: str) -> None:
    with _opened(workspace, os.O_DIRECTORY) as folder, _opened("local", os.O_DIRECTORY, folder) as local:
        draft = f".{SETTINGS}.draft"
        _remove(draft, local)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(draft, flags, 0o600, dir_fd=local), "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(draft, SETTINGS, src_dir_fd=local, dst_dir_fd=local)


@contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a path that is not a symbolic link."""
    # defence: no-way-out-by-a-link
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def hand_over(workspace: Path, confinement: Confinement) -> None:
    """Give ownership of the carrier's folder to its user."""
    if confinement.uid is None:
        return
    try:
        for descriptor in _own_files(workspace):
            os.chown(descriptor, confinement.uid, confinement.gid or -1)
    except OSError as error:
        raise InputError(
            f"{workspace} cannot be transferred to user {confinement.uid}: {error.strerror}"
        ) from None


def share(workspace: Path) -> None:
    """Give the group of a folder the same access as its owner to the files of this user."""
    for descriptor in _own_files(workspace):
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid():
            rights = 0o770 if stat.S_ISDIR(found.st_mode) else found.st_mode & 0o700 | 0o660
            os.chmod(descriptor, rights)


def _own_files(workspace: Path) -> Iterator[int]:
    """Yield descriptors of all folders and files of a workspace, without links and hard-linked files."""
    for _, _, files, folder in os.fwalk(workspace):
        yield folder
        for name in files:
            with suppress(OSError), _opened(name, 0, folder) as descriptor:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    yield descriptor
