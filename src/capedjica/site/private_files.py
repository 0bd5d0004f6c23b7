"""Files about a site's own people: nobody but their owner can read them."""

from __future__ import annotations

from pathlib import Path

from capedjica.tools.durable import write_whole, writing


def write_private(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that nobody else can read from its first byte on; durably."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # defence: enrolment-is-private
        write_whole(file, content, mode=0o600)
