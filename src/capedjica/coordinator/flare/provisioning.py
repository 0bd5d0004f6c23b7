"""A sealed study: certificates for mutual TLS and a kit for each party, made by FLARE's provisioner.

What FLARE's defaults would allow is taken out of the server's kit: jobs that bring code, components other
than ours, commands from outside, and logs that are streamed to it. What may happen at a site is not said in
its kit: the site's own program decides (``capedjica.site.flare.settings``).
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.coordinator.flare.expected_sizes import largest_message
from capedjica.coordinator.flare.federation import (
    AGGREGATOR_CLASS,
    COORDINATOR,
    FOLDER,
    Federation,
    Seal,
    read_seal,
)
from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.kit import (
    AUTHORIZATION,
    COMMUNICATION,
    LONGEST_HOST,
    ORGANISATION,
    SETTINGS,
    STARTUP,
    connection,
    is_host,
    project,
    write_json,
)
from capedjica.flare.size_limits import MAX_MESSAGE
from capedjica.study.public_files import copy_files
from capedjica.study.study_file import Study, write_study
from capedjica.tools.locks import locked
from capedjica.tools.version import __version__

DEFAULT_PORT: Final = 8002
_SITE_PATTERN: Final = r"[A-Za-z0-9_-]{1,63}"
# What FLARE calls its server, wherever it is.
_SERVER: Final = ("server", "server_parent")


def provision(study: Study, host: str, port: int) -> Federation:
    """Seal a study: make the kits of all its parties, beside its study.toml; all of them or none.

    Parameters
    ----------
    study : Study
        What is sealed; it can be changed no more.
    host : str
        The name by which sites reach the aggregator's machine.
    port : int
        Its port, the only one that must be open to the sites.
    """
    _check(study, host, port)
    target = study.folder / FOLDER
    earlier = read_seal(target)
    if earlier is not None or target.exists():
        when = f"on {earlier.sealed}" if earlier is not None else "or begun to be"
        raise InputError(f"'{study.content.title}' was sealed already, {when}: {target} exists")
    with _made(study, host, port) as made:
        made.rename(target)
    return Federation.beside(study)


def provision_again(study: Study, host: str | None = None, port: int | None = None) -> Federation:
    """Make all kits of a sealed study anew, under a new root: the earlier ones reach nobody any more.

    The study stays the same, to the hash; a run that was begun goes on with the new kits. Host and port stay
    unless others are given.
    """
    earlier = Federation.beside(study)
    host, port = host or earlier.seal.host, port or earlier.seal.port
    _check(study, host, port)
    busy = f"'{study.content.title}' is being run: its kits can be made anew when it is not"
    with locked(earlier.run_lock, busy), _made(study, host, port) as made:
        processes.stop(earlier.server_kit)
        # defence: a-new-root
        _replace(earlier.path, made)
    return Federation.beside(study)


def _replace(folder: Path, made: Path) -> None:
    """Put the folder of new kits in the place of the old one, which is removed with all else beside it."""
    aside = folder.rename(made.parent / "earlier")
    try:
        made.rename(folder)
    except OSError:
        aside.rename(folder)
        raise


@contextmanager
def _made(study: Study, host: str, port: int) -> Iterator[Path]:
    """Yield the folder of all kits, to be moved to its place."""
    try:
        with tempfile.TemporaryDirectory(prefix=".sealing-", dir=study.folder) as scratch:
            made = _make(study, host, port, Path(scratch))
            made.chmod(0o700)
            yield made
    except OSError as error:
        raise InputError(f"{study.folder / FOLDER} cannot be written: {error.strerror}") from None


def _check(study: Study, host: str, port: int) -> None:
    if not is_host(host):
        raise InputError(
            f"--host must be the name or address of the aggregator's machine, of at most {LONGEST_HOST} "
            f"characters, got {host[:80]!r}"
        )
    if not 1 <= port <= 65535:
        raise InputError(f"--port must lie between 1 and 65535, got {port}")
    _check_names(study.contract.roster.names, host)
    check_sizes(study)


def _check_names(names: tuple[str, ...], host: str) -> None:
    """Refuse names that FLARE cannot carry, or cannot tell apart."""
    from nvflare.fuel.utils.argument_utils import parse_vars

    # Kits are files named after sites, and on some disks capital letters make no difference.
    taken = {name.lower(): "the aggregator's machine" for name in (host, *_SERVER)}
    for name in names:
        if not re.fullmatch(_SITE_PATTERN, name):
            raise InputError(
                f"site {name}: a name that travels holds up to 63 letters, digits, '-' and '_'; let the site "
                "make an identity under such a name"
            )
        if parse_vars([f"uid={name}"])["uid"] != name:
            raise InputError(
                f"site {name}: NVIDIA FLARE would take this name for a number or a yes or no; let the site "
                "make an identity under another"
            )
        other = taken.setdefault(name.lower(), f"site {name}")
        if other != f"site {name}":
            raise InputError(
                f"site {name}: {other} goes by that name; let the site make an identity under another"
            )


def check_sizes(study: Study) -> None:
    """Refuse a study with messages too large to be carried, before anything is charged."""
    table = study.content.analysis
    # What is published is a matrix of features by components, and a square one.
    public = 8 * (table.n_features + table.n_components) * table.n_components
    size = largest_message(study.contract, public)
    if size > MAX_MESSAGE:
        largest = max((stage.query for stage in study.contract.stages), key=lambda query: query.size)
        raise InputError(
            f"'{largest.label}' has {largest.size:,} numbers, a message of {size / 1e6:.0f} MB; at most "
            f"{MAX_MESSAGE / 1e6:.0f} MB are carried between machines: analyse fewer features, regions of an "
            "atlas for example"
        )


def _make(study: Study, host: str, port: int, scratch: Path) -> Path:
    """Return the folder of all kits, ready to be moved to its place."""
    names = study.contract.roster.names
    workspace = scratch / project(study.hash.hex())
    _run_provisioner(workspace.name, host, port, names, scratch)
    kits = workspace / "prod_00"
    made = scratch / "made"
    (made / "kits").mkdir(parents=True)
    (kits / host).rename(made / "server")
    (kits / COORDINATOR).rename(made / "coordinator")
    _restrict_server(made / "server", len(names))
    _add_study(study, made / "server")
    for name in names:
        _reduce(kits / name)
        _add_study(study, kits / name)
        reach = connection(name, study.hash.hex(), host, port)
        write_json(kits / name / "startup" / "fed_client.json", reach)
        label = {"site": name, "study": study.hash.hex(), "capedjica": __version__}
        write_json(kits / name / "kit.json", label)
        _zip(kits / name, made / "kits" / f"{name}.zip")
    # The root's key: who has it can make kits for this study.
    (workspace / "state").rename(made / "root")
    (made / "root" / "cert.json").chmod(0o600)
    seal = Seal(
        title=study.content.title,
        study=study.hash.hex(),
        sites=names,
        host=host,
        port=port,
        sealed=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(made / "sealed.json", msgspec.to_builtins(seal))
    return made


def _run_provisioner(title: str, host: str, port: int, names: tuple[str, ...], scratch: Path) -> None:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    # defence: encryption-at-the-server
    description = Project(title, "capedjica", props={"api_version": 3})
    # defence: certificates-of-sites
    description.set_server(host, ORGANISATION, {"fed_learn_port": port, "admin_port": port})
    description.add_admin(COORDINATOR, ORGANISATION, {"role": "project_admin"})
    for name in names:
        description.add_client(name, ORGANISATION, {"allow_log_streaming": False})
    builders = [WorkspaceBuilder(), StaticFileBuilder("config", scheme="tcp"), CertBuilder()]
    words = _Words()
    context = Provisioner(str(scratch), builders).provision(description, logger=words)
    if context.get(CtxKey.BUILD_ERROR):
        raise InputError(f"the kits could not be made: {'; '.join(words.said) or 'FLARE does not say why'}")


class _Words(logging.Handler):
    """What FLARE's provisioner says, kept instead of printed."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def debug(self, text: str) -> None:
        """Ignore it."""

    info = warning = debug

    def error(self, text: str) -> None:
        """Keep it."""
        self.said.append(str(text))


def _restrict_server(kit: Path, n_sites: int) -> None:
    """Let the server run our jobs only, and receive no logs; make room for all sites."""
    local = kit / "local"
    resources = msgspec.json.decode((local / "resources.json.default").read_bytes())
    resources["class_allow_list"] = [AGGREGATOR_CLASS]
    kept = {one["id"]: one for one in resources["components"] if one["id"] != "log_receiver"}
    kept["process_launcher"]["path"] = "capedjica.coordinator.flare.launcher.LimitedLauncher"
    resources["components"] = list(kept.values())
    # A site that comes back is counted beside itself for a while.
    resources["servers"][0] |= {"heart_beat_timeout": 60, "max_num_clients": 2 * n_sites}
    (local / "log_config.json.default").rename(local / "log_config.json")
    for file in (*local.glob("*.default"), *local.glob("*.sample"), *(kit / "startup").glob("*.sh")):
        file.unlink()
    (kit / "readme.txt").unlink(missing_ok=True)
    write_json(local / "resources.json", resources)
    write_json(local / "authorization.json", AUTHORIZATION)
    write_json(local / "comm_config.json", COMMUNICATION)
    write_json(local / SETTINGS, {})


def settle(kit: Path) -> None:
    """Let a server keep its files in its own kit, wherever that is now; by default all servers share /tmp."""
    path = kit / "local" / "resources.json"
    resources = msgspec.json.decode(path.read_bytes())
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit.absolute() / "jobs")
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit.absolute() / "snapshots")
    write_json(path, resources)


def _reduce(kit: Path) -> None:
    """Leave of what FLARE would give to a site its key and certificates."""
    for part in kit.iterdir():
        if part.name != "startup":
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    for file in (kit / "startup").iterdir():
        if file.name not in STARTUP:
            file.unlink()


def _add_study(study: Study, kit: Path) -> None:
    folder = kit / "study"
    folder.mkdir()
    copy_files(study.content.features, study.folder, folder)
    # defence: identities-stay-at-sites
    write_study(folder / "study.toml", study.content)


def _zip(kit: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(kit.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(kit))
    target.chmod(0o600)
    shutil.rmtree(kit)
