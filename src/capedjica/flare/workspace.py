"""The folder in which FLARE works, as FLARE's own provisioner writes it; what we add is settings.

A site writes its workspace itself, with the FLARE that it has installed: from the coordinator come a key and
certificates, where the server is, and nothing that is run.
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
    """Have FLARE's provisioner write the folders of a server and of sites; return their parent.

    With those of an admin certificates are made, and ``scratch/PROJECT/state`` has the root's key.
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
    # What FLARE's provisioner says is kept instead of printed.
    said, logger = StringIO(), logging.Logger("provisioner", logging.ERROR)
    logger.addHandler(logging.StreamHandler(said))
    if Provisioner(str(scratch), builders).provision(description, logger=logger).get(CtxKey.BUILD_ERROR):
        words = "; ".join(said.getvalue().splitlines()) or "it does not say why"
        raise InputError(f"FLARE's folders could not be made: {words}")
    return scratch / project / "prod_00"


def restrict(workspace: Path, allowed: str) -> dict[str, Any]:
    """Let FLARE run one class, take no commands and stream no logs; return its resources, to be changed.

    None of this is what privacy rests on: it is what FLARE is asked to do, by its documented settings.
    """
    local = workspace / "local"
    resources: dict[str, Any] = msgspec.json.decode((local / "resources.json.default").read_bytes())
    resources["class_allow_list"] = [allowed]
    resources["allow_log_streaming"] = False
    resources["components"] = [
        one for one in resources["components"] if one["id"] not in ("site_log_streamer", "log_receiver")
    ]
    logs: dict[str, Any] = msgspec.json.decode((local / "log_config.json.default").read_bytes())
    # One file, which is rotated; what is printed is kept by whoever started FLARE, for as long as that likes.
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
    """Tell the carrier that will work in a folder where the socket is of the process that it works for.

    ``closed`` is what it must not be able to open, and tries before it connects to anything. The folder was
    the carrier's before: links that it may have left there lead nowhere.
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
    """Yield a descriptor of a path that is no link."""
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
    """Let the carrier's user own its folder, and nobody else enter it."""
    if confinement.uid is None:
        return
    try:
        for descriptor in _own_files(workspace):
            os.chown(descriptor, confinement.uid, confinement.gid or -1)
    except OSError as error:
        raise InputError(f"{workspace} cannot be given to user {confinement.uid}: {error.strerror}") from None


def share(workspace: Path) -> None:
    """Let the group of a folder work in what is there of this user's, as its owner does."""
    for descriptor in _own_files(workspace):
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid():
            rights = 0o770 if stat.S_ISDIR(found.st_mode) else found.st_mode & 0o700 | 0o660
            os.chmod(descriptor, rights)


def _own_files(workspace: Path) -> Iterator[int]:
    """Yield descriptors of all folders and files of a workspace that are nowhere else, links left out."""
    for _, _, files, folder in os.fwalk(workspace):
        yield folder
        for name in files:
            with suppress(OSError), _opened(name, 0, folder) as descriptor:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    yield descriptor
