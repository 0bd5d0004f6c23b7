"""What anybody outside of the sites sees of a whole run, in a form in which two runs can be compared.

**The claim.** The guarantee of a run covers the released means, for which noise pays. So everything else that
leaves the sites must be a function of public values and of these means alone. Then two runs on neighbours,
inputs that differ in all the data of one subject, of which the second is handed the means of the first, look
the same from outside. A test makes two such runs and compares all that :class:`View` holds.

**Handing over.** The aggregator of the second run really asks the sites, which really answer; only what
:meth:`Aggregator.mean` then returns is the mean that the first run had at this place.

**What is set aside**, because it differs between any two runs, and why it tells nothing:

==========================================  =============================================================
``Answer.words``, in bytes                  the release itself: masked and noisy, this is what is paid for
heads of ledgers, in bytes                  sealed by the site under a fresh nonce, always as long
keys, shares, masks, signatures, in bytes   of the secure sum: fresh, and made before any scan is read
the times in ``log.txt``                    of the clock
==========================================  =============================================================

Of the first three the *number* of bytes is compared. Everything else is made the same for both runs
beforehand: sites have the same identities, folders have the same paths, and the clock of ``run.json`` stands
still. So how long a run takes is not looked at: work follows from shapes, and a longer scan takes longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import re
import shutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from capedjica.cli import main
from capedjica.coordinator.run import run_folder
from capedjica.engines.inprocess import InProcessEngine, Letter
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import Message, Sum, SumAnswer, read_question
from capedjica.securesum.identity import SIGNATURE_BYTES, Identity
from tests.attacks.views.leaks import contents
from tests.mechanisms.world import reply

Array = np.ndarray
Shown = Mapping[str, Any]
# What is done to somebody's file.
Change = Callable[[Path], Any]

# Fields whose bytes differ between any two runs; their length is compared.
FRESH = {"Answer": {"words", "head"}, "Status": {"head"}, "Hello": {"head", "nonce"}}
# Of a message of the secure sum: kind, version, study, roster, block, attempt, sender.
SUM_HEADER = 7
LOG_TIME = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", re.MULTILINE)
# The package has a function of this name.
run_command = importlib.import_module("capedjica.cli.coordinator.run")
MIDNIGHT = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class View:
    """What a run showed.

    Attributes
    ----------
    seen : dict
        By what it is, in plain values that can be compared.
    means : list of arrays
        What was released.
    """

    seen: Shown
    means: list[Array]

    def differs_from(self, other: View) -> list[str]:
        """Name everything that is not the same in both."""
        return sorted(
            name
            for name in self.seen.keys() | other.seen.keys()
            if self.seen.get(name, "not there") != other.seen.get(name, "not there")
        )


def observe(act: Callable[[], Shown], first: View | None = None, *, interrupt: int | None = None) -> View:
    """Return all that ``act`` shows, besides what it returns; the means are those of the first run.

    With ``interrupt`` somebody presses Ctrl-C, once, when so many means were made.
    """
    watch, said = _Watch(first, interrupt), _Lines()
    with warnings.catch_warnings(record=True) as caught, said.listening(), watch.installed():
        warnings.simplefilter("always")
        try:
            shown, outcome = act(), "done"
        except Exception as error:
            shown, outcome = {}, f"{type(error).__name__}: {error}"
        warned = [f"{one.category.__name__}: {one.message}" for one in caught]
    seen = {"outcome": outcome, "warnings": warned, "log": said.lines} | dict(shown) | watch.seen()
    return View({name: plain(value) for name, value in seen.items()}, watch.means)


def plain(value: Any) -> Any:
    """Return a value as one that compares by content: arrays as bytes, dataclasses as dictionaries."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


# Who listens


class _Lines(logging.Handler):
    """Everything that is logged, but for what sites write into logs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("capedjica-site."):
            self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        logging.getLogger().addHandler(self)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self)


@dataclass
class _Watch:
    """Listens to all aggregators and engines of a run, and hands means over."""

    first: View | None
    interrupt: int | None = None
    means: list[Array] = field(default_factory=list)
    engines: list[InProcessEngine] = field(default_factory=list)
    aggregators: list[Aggregator] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self._keep_transcripts(patch)
            self._listen_to_aggregators(patch)
            identities = iter(_identities())
            patch.setattr(Identity, "generate", staticmethod(lambda: next(identities)))
            yield

    def _keep_transcripts(self, patch: pytest.MonkeyPatch) -> None:
        begin = InProcessEngine.__init__

        def __init__(engine: InProcessEngine, *args: Any, **kwargs: Any) -> None:
            begin(engine, *args, **kwargs)
            engine.keep_transcript = True
            self.engines.append(engine)

        patch.setattr(InProcessEngine, "__init__", __init__)

    def _listen_to_aggregators(self, patch: pytest.MonkeyPatch) -> None:
        begin, ask = Aggregator.__init__, Aggregator.mean

        def __init__(
            aggregator: Aggregator, *args: Any, on_event: Callable[[Any], None] | None = None, **kwargs: Any
        ) -> None:
            def tell(event: Any) -> None:
                self.events.append(event)
                if on_event is not None:
                    on_event(event)

            begin(aggregator, *args, on_event=tell, **kwargs)
            self.aggregators.append(aggregator)

        def mean(aggregator: Aggregator, stage: int, state: bytes = b"") -> Array:
            if len(self.means) == self.interrupt:
                self.interrupt = None
                raise KeyboardInterrupt
            return self._hand_over(ask(aggregator, stage, state))

        patch.setattr(Aggregator, "__init__", __init__)
        patch.setattr(Aggregator, "mean", mean)

    def _hand_over(self, value: Array) -> Array:
        number = len(self.means)
        self.means.append(value.copy() if self.first is None else self.first.means[number].copy())
        return self.means[-1].copy()

    def seen(self) -> Shown:
        wire = [[described(one, _contract(engine)) for one in engine.transcript] for engine in self.engines]
        return {
            "number of means": len(self.means),
            "events": self.events,
            "wire": wire,
            # Without rounds and order, which are a matter of chance where blocks are made in another thread.
            "letters": [sorted(repr(letter[1:]) for letter in letters) for letters in wire],
            "refusals": [aggregator.refusals for aggregator in self.aggregators],
            "releases": [aggregator.releases for aggregator in self.aggregators],
        }


@cache
def _identities() -> tuple[Identity, ...]:
    """Keys of the sites of studies in one process: the same in both runs, so that contracts are."""
    return tuple(Identity.generate() for _ in range(8))


def _contract(engine: InProcessEngine) -> Contract:
    return next(iter(engine.sites.values())).contract


# Letters


def described(letter: Letter, contract: Contract) -> Any:
    """Return everything about a letter but the bytes that are fresh in every run."""
    message = read_question(letter.data, contract) if letter.direction == "question" else reply(letter.data)
    return letter.round, letter.site, letter.direction, len(letter.data), _fields(message)


def _fields(message: Message) -> Any:
    kind = type(message).__name__
    values = msgspec.structs.asdict(message)
    for name in FRESH.get(kind, ()):
        values[name] = len(values[name])
    if isinstance(message, SumAnswer) and message.data:
        values["data"] = _of_the_sum(message.data[:-SIGNATURE_BYTES])
    elif isinstance(message, Sum):
        values["data"] = _of_the_sum(message.data)
    return kind, {name: msgspec.to_builtins(value) for name, value in values.items()}


def _of_the_sum(data: bytes) -> Any:
    """Return a message of the secure sum: its header as it is, of the rest who and how much."""
    parts = msgspec.msgpack.decode(data)
    return parts[:SUM_HEADER], [_lengths(part) for part in parts[SUM_HEADER:]]


def _lengths(part: Any) -> Any:
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, dict):
        return {name: _lengths(one) for name, one in part.items()}
    return [_lengths(one) for one in part] if isinstance(part, list) else part


# Studies on disk


@dataclass(frozen=True)
class Trial:
    """A study on disk, put back into the same place before every run.

    Attributes
    ----------
    template : Path
        Folder of the study and its sites as they are before a run.
    place : Path
        Where it is run.
    victim : str
        The file, in that folder, of the subject that is replaced.
    """

    template: Path
    place: Path
    victim: str

    def run(
        self,
        change: Change | None = None,
        first: View | None = None,
        *,
        midway: Change | None = None,
    ) -> View:
        """Put the study back, change the victim's file, run the study and write its report.

        With ``midway`` the run is interrupted before its third mean, the file changed, and the run resumed.
        """
        if self.place.exists():
            shutil.rmtree(self.place)
        shutil.copytree(self.template, self.place, symlinks=True)
        if change is not None:
            change(self.place / self.victim)
        return observe(lambda: self._shown(midway), first, interrupt=2 if midway else None)

    def _shown(self, midway: Change | None) -> Shown:
        readings: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            _stop_the_clock(patch)
            _watch_progress(patch, readings)
            patch.chdir(self.place)
            said = [in_terminal(["run", "study.toml"])]
            if midway is not None:
                midway(self.place / self.victim)
                said.append(in_terminal(["run", "study.toml", "--resume"]))
            said.append(in_terminal(["report", "run"]))
        return {"terminal": said, "progress": readings} | files(self.place / "run")


def files(folder: Path) -> Shown:
    """Return every file of a run's folder, as it is and unpacked, with its mode."""
    written = {f"file {name}": LOG_TIME.sub(b"", data) for name, data in contents(folder)}
    modes = {str(path.relative_to(folder)): path.stat().st_mode for path in sorted(folder.rglob("*"))}
    return written | {"modes of files": modes}


def in_terminal(words: Sequence[str]) -> Any:
    """Run a command as a terminal without colours would; return its exit code and all that it says."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setenv("COLUMNS", "200")
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["capedjica", *words])
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def _stop_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_folder, "datetime", types.SimpleNamespace(now=lambda zone: MIDNIGHT))
    patch.setattr(run_folder, "time", types.SimpleNamespace(monotonic=lambda: 0.0))


def _watch_progress(patch: pytest.MonkeyPatch, told: list[Any]) -> None:
    """Keep what the bars of a terminal are told, which is shown there when nobody stops the clock."""
    make = run_command._watcher

    class Told:
        def __init__(self, bars: Any) -> None:
            self._bars = bars

        def __getattr__(self, name: str) -> Any:
            def tell(*args: Any) -> None:
                told.append((name, plain(args)))
                getattr(self._bars, name)(*args)

            return tell

    patch.setattr(run_command, "_watcher", lambda progress, study: Told(make(progress, study)))
