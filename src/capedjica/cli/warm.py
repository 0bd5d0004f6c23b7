"""Command server for the local web pages: one loaded process that forks a child for every command.

``python -m capedjica.cli.warm`` reads requests from a Unix socket on descriptor 0. A request is a length and
a JSON list, the arguments of one ``capedjica`` command, with three descriptors: standard output, standard
error, and a pipe that receives the process number first and the exit code last. Arguments are not visible in
the process list, as those of a program would be.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from typing import Final

_HEADER: Final = 4
_MOST: Final = 1 << 20
# What most commands load: typer when it reads the first argument, the accountant for its first mu.
_ALWAYS: Final = ("typer._adapters", "scipy.optimize")
_LOADED: Final = {
    "site": (
        "capedjica.site.check",
        "capedjica.site.overview",
        "capedjica.site.flare.status",
        "capedjica.site.consent.withdrawal",
        "capedjica.site.approval.revocation",
        "capedjica.data.images",
    ),
    "study": (
        "capedjica.coordinator.planning.plan_text",
        "capedjica.coordinator.run.run_status",
        "capedjica.coordinator.flare.status",
        "capedjica.coordinator.new_study",
    ),
}


def main(role: str) -> None:
    """Load the commands of a role, then carry out requests until the other end is closed."""
    import capedjica.cli

    for name in (*_ALWAYS, *_LOADED[role]):
        # Without NVIDIA FLARE the commands that need it say so themselves.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    link = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while (request := _receive(link)) is not None:
        arguments, descriptors = request
        if os.fork() == 0:
            link.close()
            _carry_out(arguments, descriptors, capedjica.cli.main)
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(link: socket.socket) -> tuple[list[str], list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(link, _HEADER, 3)
    if len(header) < _HEADER or len(descriptors) != 3:
        return None
    size, data = int.from_bytes(header), b""
    while len(data) < min(size, _MOST):
        chunk = link.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return [str(one) for one in json.loads(data)], descriptors


def _carry_out(arguments: list[str], descriptors: list[int], command: object) -> None:
    """Run one command in this process, which ends with it."""
    out, err, status = descriptors
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.write(status, f"{os.getpid()}\n".encode())
        sys.argv = ["capedjica", *arguments]
        warnings.resetwarnings()
        assert callable(command)
        command()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        # Before the command itself could answer it.
        sys.stderr.write("capedjica: interrupted\n")
        code = 128 + signal.SIGINT
    except BaseException as error:
        # No traceback: its lines may quote a participant's name.
        sys.stderr.write(f"capedjica: an unexpected {type(error).__name__}; the command line shows more\n")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(status, f"{code}\n".encode())
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
