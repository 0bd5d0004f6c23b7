"""Processes that change the key of a site and are killed on the way; forked on demand.

Run as ``python -m tests.faults.rotation_worker``; each line on standard input is the folder of a site and the
line of code at which to die. The number of the process is answered when it has ended, with how it ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from capedjica.site import key_rotation
from capedjica.site.home import SiteHome

CODE = tuple(
    str(Path("capedjica", *parts))
    for parts in (
        ("privacy", "ledger"),
        ("site", "key_rotation.py"),
        ("site", "home.py"),
        ("securesum", "identity.py"),
        ("tools", "durable.py"),
    )
)


def die_at(folder: Path, step: int) -> None:
    """Change the key, but die at the ``step``-th line of the code on the way."""
    remaining, home = step, SiteHome.load(folder)

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal remaining
        if not any(part in frame.f_code.co_filename for part in CODE):
            return None
        remaining -= event == "line"
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    key_rotation.rotate_key(home)
    sys.settrace(None)


def main() -> None:
    """Fork a process for each line of standard input, and say how it ended."""
    for line in sys.stdin:
        folder, step = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            die_at(Path(folder), int(step))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(
            "killed" if os.WIFSIGNALED(status) else f"ended {os.waitstatus_to_exitcode(status)}", flush=True
        )


if __name__ == "__main__":
    main()
