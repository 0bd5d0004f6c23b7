"""Log files of a run and of its sites; a run continues even if they cannot be written."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from capedjica.tools.atomic_files import writing

# No module name starts with this prefix; it marks messages that must not enter FLARE's logs.
PRIVATE_LOGS: Final = "capedjica-site"


@contextmanager
def logged(name: str, path: Path, *, private: bool = False) -> Iterator[None]:
    """Write the messages of a logger to a file; a private file is readable by its owner only.

    Within another such context for the same file, this does nothing.
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
    """Make a file readable by its owner only, before its first byte is written."""
    with writing(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)


class _LogFile(logging.FileHandler):
    """A log file whose write errors are ignored: on a full disk lines are lost and the run continues."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error; the line is lost."""

    def close(self) -> None:
        """Close the file; lines that could not be written are lost."""
        with suppress(OSError):
            super().close()


def private_log(site: str) -> logging.Logger:
    """Return the logger for messages that may name participants; only the site may read them."""
    return logging.getLogger(f"{PRIVATE_LOGS}.{site}")
