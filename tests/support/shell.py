"""Scripts run by a real shell, of which the commands of capedjica run in this process.

Starting Python and importing nilearn would take most of the time of a script with many commands.
"""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from capedjica.cli import bids, main

_SHELL = """set -e
trap ': > ask' EXIT
ask() { local code; printf '%s\\0' "$@" > ask; read -r code < answer; return "$code"; }
capedjica() { ask capedjica "$@"; }
capedjica-bids() { ask capedjica-bids "$@"; }
"""
_PROGRAMS = {"capedjica": main, "capedjica-bids": bids.main}


def run_script(script, folder):
    """Run a script in a folder and return what its commands said; fail if one of them fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        for name in ("ask", "answer"):
            os.mkfifo(name)
        shell = subprocess.Popen(["bash", "-c", _SHELL + script], stderr=subprocess.PIPE, text=True)
        try:
            said = "".join(_answers(patch))
            errors = shell.communicate()[1]
        finally:
            shell.kill()
    assert shell.returncode == 0, said + errors
    return said


def _answers(patch):
    """Run what the shell asks for until it ends, and yield what was said."""
    while asked := _read("ask"):
        arguments = asked.decode().split("\0")[:-1]
        patch.setattr(sys, "argv", arguments)
        with io.StringIO() as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                _PROGRAMS[arguments[0]]()
                code = 0
            except SystemExit as exited:
                code = exited.code or 0
            yield f"$ {' '.join(arguments)}\n{out.getvalue()}"
        with open("answer", "w") as answer:
            answer.write(f"{code}\n")


def _read(path):
    with open(path, "rb") as file:
        return file.read()
