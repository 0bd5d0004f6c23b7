"""Sealing of a study: certificates for mutual TLS and a kit for each party, by FLARE's provisioner.

A site's kit contains the study, a key, certificates and the address of the server, but no code that is run.
It is signed by the coordinator's key, which a site pins when it approves the study.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.coordinator.flare.expected_sizes import largest_message
from capedjica.coordinator.flare.federation import FOLDER, KEY, Federation, Seal, read_seal, sealed_before
from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.kit import (
    AGGREGATOR_CLASS,
    COORDINATOR,
    LONGEST_HOST,
    PROTOCOL,
    STARTUP,
    Label,
    is_host,
    project,
    startup_files,
    write_json,
)
from capedjica.flare.wire import MAX_MESSAGE
from capedjica.flare.workspace import flare_folders, restrict
from capedjica.securesum.identity import Identity
from capedjica.study.analyses import AnalysisTable, IcaTable
from capedjica.study.public_files import copy_files
from capedjica.study.study_file import Study, write_study
from capedjica.tools.locks import locked

DEFAULT_PORT: Final = 8002
_SITE_PATTERN: Final = r"[A-Za-z0-9_-]{1,63}"
# Names reserved by FLARE for its server.
_SERVER: Final = ("server", "server_parent")


def provision(study: Study, host: str, port: int) -> Federation:
    """Seal a study: create the kits of all parties next to its study.toml, all of them or none.

    Parameters
    ----------
    study : Study
        The study, which can no longer be changed.
    host : str
        Host name or address at which sites reach the aggregator's machine.
    port : int
        Its port, the only one that must be open to the sites.
    """
    _check(study, host, port)
    target = study.folder / FOLDER
    earlier = read_seal(target)
    if earlier is not None or target.exists():
        if earlier is None:
            raise InputError(f"{target} exists but is not the folder of a sealed study; move it away")
        raise InputError(
            f"'{study.content.title}' was already sealed, on {earlier.sealed}: {target} exists; use --again "
            "to create new kits"
        )
    with _made(study, host, port, Identity.generate()) as made:
        made.rename(target)
    return Federation.beside(study)


def provision_again(study: Study, host: str | None = None, port: int | None = None) -> Federation:
    """Create all kits of a sealed study again, under a new root certificate; the earlier kits stop working.

    The study and its hash are unchanged. A run that was started resumes with the new kits, which are signed
    by the same coordinator's key. Host and port are unchanged unless given.
    """
    earlier = sealed_before(study) or Federation.beside(study)
    host, port = host or earlier.seal.host, port or earlier.seal.port
    _check(study, host, port)
    busy = f"'{study.content.title}' is being run; create new kits when the run has ended or is stopped"
    # A study that was sealed by a version without coordinator's keys gets one now.
    key = earlier.key() if earlier.key_path.exists() else Identity.generate()
    with locked(earlier.run_lock, busy), _made(study, host, port, key) as made:
        processes.stop(earlier.path)
        # defence: a-new-root
        _replace(earlier.path, made)
    return Federation.beside(study)


def _replace(folder: Path, made: Path) -> None:
    """Replace the old folder of kits by the new one; the old one is moved into the temporary folder."""
    aside = folder.rename(made.parent / "earlier")
    try:
        made.rename(folder)
    except OSError:
        aside.rename(folder)
        raise


@contextmanager
def _made(study: Study, host: str, port: int, key: Identity) -> Iterator[Path]:
    """Yield a temporary folder with all kits, to be moved to its final path."""
    try:
        with tempfile.TemporaryDirectory(prefix=".sealing-", dir=study.folder) as scratch:
            yield _make(study, host, port, key, Path(scratch))
    except OSError as error:
        raise InputError(f"{study.folder / FOLDER} cannot be written: {error.strerror}") from None


def _check(study: Study, host: str, port: int) -> None:
    if not is_host(host):
        raise InputError(
            f"--host must be the name or address of the aggregator's machine, with at most {LONGEST_HOST} "
            f"characters, got {host[:80]!r}"
        )
    if not 1 <= port <= 65535:
        raise InputError(f"--port must be between 1 and 65535, got {port}")
    _check_names(study.contract.roster.names, host)
    check_sizes(study)


def _check_names(names: tuple[str, ...], host: str) -> None:
    """Refuse names that FLARE cannot use, or cannot distinguish."""
    # Kits are files named after sites, and some file systems ignore case.
    taken = {name.lower(): "the aggregator's machine" for name in (host, *_SERVER)}
    for name in names:
        if not re.fullmatch(_SITE_PATTERN, name):
            raise InputError(
                f"site {name}: for a study across machines, a site name must have 1 to 63 letters, digits, "
                "'-' and '_'; ask the site to create an identity with such a name"
            )
        if _is_value(name):
            raise InputError(
                f"site {name}: NVIDIA FLARE would read this name as a number or a truth value; ask the site "
                "to create an identity with another name"
            )
        other = taken.setdefault(name.lower(), f"site {name}")
        if other != f"site {name}":
            raise InputError(
                f"site {name}: this name is already used by {other}; ask the site to create an identity with "
                "another name"
            )


def _is_value(name: str) -> bool:
    """Return whether a command line argument may be read as a number or as a truth value."""
    with suppress(ValueError):
        float(name.replace("_", ""))
        return True
    with suppress(ValueError):
        int(name, 0)
        return True
    return name.lower() in ("true", "false", "yes", "no", "none", "null", "t", "f", "y", "n")


def _n_components(table: AnalysisTable) -> int:
    return table.most_components if isinstance(table, IcaTable) else int(getattr(table, "n_components", 0))


def check_sizes(study: Study) -> None:
    """Refuse a study with messages that are too large, before any budget is charged."""
    n_components = max((_n_components(step.table) for step in study.steps), default=0)
    # Published are a matrix of features by components and a square matrix, or one as large as a mean.
    public = 8 * (study.steps[0].setting.n_features + n_components) * n_components
    largest_mean = 8 * max(stage.query.size for stage in study.contract.stages)
    size = largest_message(study.contract, max(public, largest_mean))
    if size > MAX_MESSAGE:
        largest = max((stage.query for stage in study.contract.stages), key=lambda query: query.size)
        raise InputError(
            f"'{largest.label}' has {largest.size:,} numbers, a message of {size / 1e6:.0f} MB; messages "
            f"between machines are limited to {MAX_MESSAGE / 1e6:.0f} MB. Analyse fewer features, for "
            "example the regions of an atlas"
        )


def _make(study: Study, host: str, port: int, key: Identity, scratch: Path) -> Path:
    """Create the folder of all kits."""
    names, title = study.contract.roster.names, project(study.hash.hex())
    kits = flare_folders(title, host, port, names, scratch, admin=COORDINATOR)
    made = scratch / "made"
    (made / "kits").mkdir(parents=True, mode=0o700)
    (kits / host).rename(made / "server")
    (kits / COORDINATOR).rename(made / "coordinator")
    _settle_server(made / "server", len(names))
    hash_, public = study.hash.hex(), key.public_key.hex()
    for name in names:
        _reduce(kits / name)
        _add_study(study, kits / name)
        label = Label(site=name, study=hash_, host=host, port=port, protocol=PROTOCOL, coordinator=public)
        own = label.signed(key, startup_files(kits / name))
        write_json(kits / name / "kit.json", msgspec.to_builtins(own))
        _zip(kits / name, made / "kits" / f"{name}.zip")
    # The root's key can issue certificates for this study.
    (scratch / title / "state").rename(made / "root")
    (made / "root").chmod(0o700)
    (made / "root" / "cert.json").chmod(0o600)
    key.save(made / KEY)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    seal = Seal(title=study.content.title, study=hash_, sites=names, host=host, port=port, sealed=now)
    write_json(made / "sealed.json", msgspec.to_builtins(seal))
    made.chmod(0o711)
    return made


def _settle_server(kit: Path, n_sites: int) -> None:
    """Configure the server to run only our relay, to admit all sites, and to detect lost ones in time."""
    resources = restrict(kit, AGGREGATOR_CLASS)
    # A site that reconnects is counted twice for a while.
    resources["servers"][0] |= {"heart_beat_timeout": 60, "max_num_clients": 2 * n_sites}
    write_json(kit / "local" / "resources.json", resources)


def settle(kit: Path) -> None:
    """Configure a server to keep its files in its own kit; by default all servers share /tmp."""
    path = kit / "local" / "resources.json"
    resources = msgspec.json.decode(path.read_bytes())
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit.absolute() / "jobs")
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit.absolute() / "snapshots")
    write_json(path, resources)


def _reduce(kit: Path) -> None:
    """Remove everything from FLARE's kit of a site except its key and certificates."""
    for part in kit.iterdir():
        if part.name != "startup":
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    for file in (kit / "startup").iterdir():
        if file.name not in STARTUP:
            file.unlink()


def _add_study(study: Study, kit: Path) -> None:
    folder = kit / "study"
    folder.mkdir()
    copy_files(study.content.with_files, study.folder, folder)
    # defence: identities-stay-at-sites
    write_study(folder / "study.toml", study.content)


def _zip(kit: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(kit.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(kit))
    target.chmod(0o600)
    shutil.rmtree(kit)
