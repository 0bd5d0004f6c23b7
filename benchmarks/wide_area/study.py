"""One study by NVIDIA FLARE, with its server and each of its sites in a network namespace of its own."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

import msgspec

from benchmarks.wide_area.namespaces import Conditions, Place, network
from capedjica.coordinator.flare.carrier import Carrier
from capedjica.coordinator.flare.provisioning import DEFAULT_PORT, provision
from capedjica.coordinator.flare.remote_run import Terms, run_federated
from capedjica.coordinator.flare.transport import Courier
from capedjica.flare import processes
from capedjica.one_machine.local_run import find_sites
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.flare.starting import choose, programs
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study

# Longest time of one study, after which its network ends, and with it the study.
LONGEST: Final = 1200.0


@dataclass(frozen=True)
class Round:
    """One exchange with the sites: a question to each and their answers.

    Attributes
    ----------
    kind : str
        The kind of the questions: "Hello", "Begin", "Sum" or "Ask".
    ahead : bool
        Whether it was made while the aggregator did something else, by the thread that prepares masks.
    began, ended : float
        When, in seconds since the first round.
    n_bytes : int
        Size of the largest question and the largest answer of a site together.
    """

    kind: str
    ahead: bool
    began: float
    ended: float
    n_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What one study took.

    Attributes
    ----------
    rounds : list of Round
        Its exchanges.
    seconds : float
        From its first question to its last answer.
    command : float
        The whole run, with the start of the server and of the job, from the command to the results.
    n_posts : int
        Dispatches of parcels to sites, at least one for each round.
    counts : dict
        Packets that the relay delivered and dropped.
    """

    rounds: list[Round]
    seconds: float
    command: float
    n_posts: int
    counts: Mapping[str, int]


def run_study(simulation: Simulation, conditions: Conditions) -> Outcome:
    """Simulate a study and run it under these conditions."""
    with tempfile.TemporaryDirectory(prefix="capedjica-wide-area-") as scratch:
        folder = Path(scratch) / "study"
        simulate(simulation, folder)
        study = Study.load(folder)
        return run_between(study, find_sites(study, folder / "sites"), conditions)


def run_between(study: Study, homes: Sequence[SiteHome], conditions: Conditions) -> Outcome:
    """Seal a study and run it, with its server and its sites in namespaces."""
    with network(1 + len(homes), conditions, LONGEST) as joined:
        server, *places = joined.places
        _seal(study, homes, server.address)
        with noted() as notes, _running(homes, places), server.entered():
            began = time.perf_counter()
            run_federated(study, study.folder / "run", Terms(wait=300.0))
            command = time.perf_counter() - began
    rounds = notes.rounds
    return Outcome(rounds, rounds[-1].ended - rounds[0].began, command, notes.n_posts, joined.counts)


def _seal(study: Study, homes: Sequence[SiteHome], host: str) -> None:
    federation = provision(study, host, DEFAULT_PORT)
    for home in homes:
        with kits.received(home, federation.site_kits / f"{home.settings.name}.zip") as (given, keep):
            approve(home, given)
            keep()


@contextmanager
def _running(homes: Sequence[SiteHome], places: Sequence[Place]) -> Iterator[None]:
    """Run the programs of each site in its place; they also end if this process is killed."""
    own = [(home, kits.find_kit(home), place) for home, place in zip(homes, places, strict=True)]
    owner = processes.mark(os.getpid())

    def start(home: SiteHome, kit: kits.Kit, place: Place) -> None:
        with place.entered():
            processes.start(kit.path, programs(home, kit, choose(home, kit)), owner)

    with ThreadPoolExecutor(len(own)) as together:
        try:
            list(together.map(lambda one: start(*one), own))
            yield
        finally:
            list(together.map(lambda one: processes.stop(one[1].path), own))


class Notes:
    """What the aggregator of a run did, as noted by :func:`noted`."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.n_posts = 0


@contextmanager
def noted() -> Iterator[Notes]:
    """Note the exchanges of runs in this process."""
    notes, exchange, send = Notes(), Courier.exchange, Carrier.send
    first: list[float] = []
    main = threading.current_thread()

    def noting(self: Courier, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        began = time.perf_counter()
        first.append(began)
        answers = exchange(self, questions)
        ended = time.perf_counter()
        kind, ahead = _kind(questions), threading.current_thread() is not main
        size = _largest(questions) + _largest(answers)
        notes.rounds.append(Round(kind, ahead, began - first[0], ended - first[0], size))
        return answers

    def counting(self: Carrier, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        notes.n_posts += 1
        return send(self, parcels, seconds)

    with patch.object(Courier, "exchange", noting), patch.object(Carrier, "send", counting):
        yield notes


def _kind(questions: Mapping[str, bytes]) -> str:
    return str(msgspec.msgpack.decode(next(iter(questions.values())))[0])


def _largest(messages: Mapping[str, bytes]) -> int:
    return max(map(len, messages.values()), default=0)
