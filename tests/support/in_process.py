"""The command line run in this process, which is quicker than starting one."""

import subprocess
import sys

import pytest

from capedjica.cli import main


def run_main(arguments, monkeypatch, capsys):
    """Run a command as a terminal of 200 columns without colours would; return what came out."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["capedjica", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    out, err = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, exited.value.code, out, err)
