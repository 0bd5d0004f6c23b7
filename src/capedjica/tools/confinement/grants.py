"""The files that a Python program with a network needs, and which of them may be granted."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
)
# Listed individually; for certificates only the public files, since private keys are in adjacent folders.
_SETTINGS: Final = (
    "ca-certificates",
    "crypto-policies",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_DEVICES: Final = ("null", "zero", "random", "urandom", "full", "tty")
# Folders that hold files of many kinds: these are never granted, even if they are on the module path.
_TOO_WIDE: Final = ("/", "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var")  # noqa: S108 (named to be left out)


def runtime_reads() -> list[Path]:
    """Return the paths that a Python program with a network reads: interpreter, modules, settings."""
    own: list[str | Path] = [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)]
    package = Path(__file__).parents[2]
    settings = [Path("/etc", name) for name in _SETTINGS]
    found = map(Path, [*own, package, *_module_folders(), *_SYSTEM, *settings, *runtime_writes()])
    return [path for path in dict.fromkeys(found) if os.path.exists(path)]


def runtime_writes() -> list[Path]:
    """Return the devices that any program writes to."""
    return [Path("/dev", name) for name in _DEVICES]


def without_secrets(paths: Iterable[Path], secrets: Iterable[Path]) -> list[Path]:
    """Return the paths that neither are nor contain a secret."""
    hidden = [_real(secret) for secret in secrets]
    # defence: secrets-are-never-granted
    return [path for path in paths if not any(one.is_relative_to(_real(path)) for one in hidden)]


def _module_folders() -> Iterator[Path]:
    """Yield the folders on the module path, except those that also hold other files."""
    too_wide = {_real(Path(place)) for place in _TOO_WIDE}
    # According to the environment and to the user database.
    homes = [_real(Path(os.environ["HOME"]))] if os.environ.get("HOME") else []
    with suppress(KeyError):
        homes.append(_real(Path(pwd.getpwuid(os.getuid()).pw_dir)))
    for entry in [*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]:
        place = _real(Path(entry))
        # An empty entry means the current folder.
        if entry and place not in too_wide and not any(home.is_relative_to(place) for home in homes):
            yield place


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
