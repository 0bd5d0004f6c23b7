"""A copy of the sources, in which a defence is taken away and its test is run."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

# What every process would import, and takes long to; nothing of ours, which is to be imported from the copy.
import cryptography.hazmat.primitives.ciphers.aead
import msgspec
import numba
import numpy
import pytest
import scipy.optimize
import scipy.stats

from tests.defences.catalogue import Defence
from tests.defences.markers import changed, markers, place_of
from tests.defences.outcomes import described
from tests.support.places import ROOT

__all__ = ["Laboratory", "cryptography", "msgspec", "numba", "numpy", "scipy"]

COPIED = ("benchmarks", "src", "tests")
# Errors of a change that does not fit its source, and not of what it let through.
MISTAKES = (
    "SyntaxError",
    "IndentationError",
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFound",
)


class Laboratory:
    """A copy of the sources and the tests, in which anything may be changed."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        for part in COPIED:
            # With its times, so that machine code compiled for unchanged sources is used again.
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy2(ROOT / "pyproject.toml", folder)
        self.fails_as_it_is = self._failures(*sorted(place_of(name) for name in names))

    def outcome(self, defence: Defence) -> str:
        """Return the line of the report about a defence, and print it."""
        test = place_of(defence.test)
        verdict, why = "FAILS AS IT IS", self.fails_as_it_is.get(test)
        if why is None:
            with self._without(defence.changes):
                why = self._failures("-x", test).get(test, "")
            noticed = why and not why.startswith(MISTAKES)
            verdict = "noticed" if noticed else "NOT NOTICED"
        print(f"{defence.name}: {verdict}: {why}", flush=True)
        return f"{verdict} | {described(defence)} | {why}"

    @contextmanager
    def _without(self, changes: Mapping[str, str]) -> Iterator[None]:
        """Have sources without a defence."""
        files = {marker: self.folder / markers()[marker] for marker in changes}
        before = {file: (file.read_text("utf-8"), file.stat()) for file in files.values()}
        try:
            for marker, new in changes.items():
                file = files[marker]
                file.write_text(changed(file.read_text("utf-8"), marker, new), "utf-8")
            yield
        finally:
            for file, (text, stat) in before.items():
                file.write_text(text, "utf-8")
                os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _failures(self, *words: str) -> dict[str, str]:
        """Return which tests fail, and how; of tests with parameters the first that fails."""
        options = ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-m", "", "-q", "-rfE"]
        code, said = self._run([*options, "--tb=no", *words])
        found = re.findall(r"^(FAILED|ERROR) ([^\s\[]+)(?:\[.*?\])?(?: - (.*))?$", said, re.MULTILINE)
        failures: dict[str, str] = {}
        for kind, test, why in found:
            # What tests share may notice, too; what only fails to begin has not.
            noticed = kind == "FAILED" or why.startswith(("Failed: ", "AssertionError", "assert "))
            told = "" if noticed else "ImportError or the like, before the test: "
            failures.setdefault(test, told + re.sub(r"/\S*/", "", " ".join(why.split()))[:200])
        assert code == (1 if failures else 0), said[-2000:]
        return failures

    def _run(self, words: list[str]) -> tuple[int, str]:
        """Run pytest on the copy in a process of its own; return its exit code and what it said."""
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                self._become_pytest(words)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            return code, said.read().decode("utf-8", "replace")

    def _become_pytest(self, words: list[str]) -> NoReturn:
        """Do in a forked process what ``python -m pytest`` would do there, without importing all again."""
        code = -1
        try:
            os.chdir(self.folder)
            own = [str(self.folder / "src"), str(self.folder)]
            os.environ |= {"PYTHONPATH": os.pathsep.join(own), "PYTHONDONTWRITEBYTECODE": "1"}
            os.environ |= {"COLUMNS": "300", "FUZZ_SECONDS": os.environ.get("FUZZ_SECONDS", "60")}
            sys.dont_write_bytecode = True
            sys.path[:] = own + [
                place for place in sys.path if place not in ("", str(ROOT), str(ROOT / "src"))
            ]
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            code = int(pytest.main(words))
            assert sys.modules["capedjica"].__file__.startswith(own[0])
        finally:
            os._exit(code)
