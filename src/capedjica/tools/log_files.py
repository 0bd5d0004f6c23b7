"""Logs of a run and of its sites, on which nothing depends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from capedjica.tools.atomic_files import writing

# No name of a module begins so: what goes into FLARE's logs, and what must not, is told apart by it.
PRIVATE_LOGS: Final = "capedjica-site"


@contextmanager
def logged(name: str, path: Path, *, private: bool = False) -> Iterator[None]:
    """Write what is logged under a name into a file; of a private one nobody but its owner reads a line.

    Inside of another such context for the same file, that one does it.
    """
    logger = logging.getLogger(name)
    if any(isinstance(one, _LogFile) and one.path == path.absolute() for one in logger.handlers):
        yield
        return
    if private:
        _make_private(path)
    with writing(path):
        handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
        handler.close()


def _make_private(path: Path) -> None:
    """Let nobody but its owner read a file, from before its first byte on."""
    with writing(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)


class _LogFile(logging.FileHandler):
    """A log on which nothing depends: on a full disk lines are lost, and the run goes on."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""

    def close(self) -> None:
        """Close the file, and lose what could not be written."""
        with suppress(OSError):
            super().close()


def private_log(site: str) -> logging.Logger:
    """Return where to log what may name people: nobody but the site may read it."""
    return logging.getLogger(f"{PRIVATE_LOGS}.{site}")
