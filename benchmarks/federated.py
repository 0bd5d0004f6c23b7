"""Releases across processes by NVIDIA FLARE: ``python -m benchmarks.federated [--quick] [--sites N]``.

A server and sites of their own processes, on this machine, over mutual TLS. The online part of a release is
the time from the aggregator's question to the last answer, less the time that the slowest site computes. With
``--against TREE``, a worktree of an earlier commit, both are measured in turn (`benchmarks.trees`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import EVIDENCE_WIDTH, ROOT, Row, Section, amount_row, show, write_evidence
from benchmarks.timed.aggregator import Notes, timed
from benchmarks.timed.slots import TIMES
from capedjica.coordinator.flare.provisioning import provision
from capedjica.coordinator.flare.remote_run import Terms, run_federated
from capedjica.data import FeatureTable, make_synthetic
from capedjica.one_machine.flare_demo import free_port, running_sites
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.study.analyses import IcaTable
from capedjica.study.study_file import PrivacyTable, SiteTable, Study, StudyFile, write_study

AIM_MS: Final = 30.0
# What has the sites take the time.
CLOCK: Final = ROOT / "benchmarks" / "clock"
# The first releases wait for compilers and files.
WARM_UP: Final = 20

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """A study's size: sites, people at each, length of a scan, side of an image, networks, iterations."""

    sites: int = 4
    people: int = 10
    length: int = 50
    side: int = 10
    components: int = 20
    iterations: int = 300


@dataclass(frozen=True)
class Times:
    """What was measured in one run, in seconds, a number for each release.

    Attributes
    ----------
    bare : ndarray
        Round trips of a message that asks for nothing.
    asked : ndarray
        From the question to the last answer.
    computed, handled : ndarray
        At the slowest site: computing alone, and until its answer was ready.
    total : float
        From the first question to the last answer.
    """

    bare: FloatArray
    asked: FloatArray
    computed: FloatArray
    handled: FloatArray
    total: float

    @property
    def online(self) -> FloatArray:
        """The online part of each release that was not among the first."""
        return (self.asked - self.computed)[WARM_UP:]

    @property
    def idle(self) -> float:
        """Part of the total time in which nobody computed."""
        return 1 - float(self.computed.sum()) / self.total


def measure(size: Size, probes: int = 300) -> Times:
    """Run a study of the paper's method and return what it took."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        homes = _write_study(size, folder)
        study = Study.load(folder)
        _hand_out_kits(study, homes)
        with timed(probes) as notes, running_sites(homes):
            run_federated(study, folder / "run", Terms(wait=300.0))
        return _read(notes, homes)


def _write_study(size: Size, folder: Path) -> list[SiteHome]:
    names = [f"site-{number}" for number in range(1, size.sites + 1)]
    homes = [SiteHome.create(folder / name, name, 100.0, 50.0, 1e-5, simulated=True) for name in names]
    people = [size.people] * size.sites
    data = make_synthetic(
        size.sites, sum(people), size.components, size.length, size.side, 1, site_sizes=people
    )
    for home, subjects in zip(homes, data.sites, strict=True):
        home.data_path.mkdir()
        for index, subject in enumerate(subjects):
            np.save(home.data_path / f"sub-{index:04d}.npy", subject)
    content = StudyFile(
        title="benchmark",
        analyses=(IcaTable(method="paper", n_components=size.components, max_iter=size.iterations),),
        features=FeatureTable(n_features=size.side**2, scan_length=size.length),
        privacy=PrivacyTable(epsilon=10.0),
        sites=tuple(
            SiteTable(name=name, subjects=size.people, card=home.card().card)
            for name, home in zip(names, homes, strict=True)
        ),
    )
    write_study(folder / "study.toml", content)
    return homes


def _hand_out_kits(study: Study, homes: Sequence[SiteHome]) -> None:
    federation = provision(study, "localhost", free_port())
    for home in homes:
        with kits.received(home, federation.site_kits / f"{home.settings.name}.zip") as (given, keep):
            approve(home, given)
            keep()


def _read(notes: Notes, homes: Sequence[SiteHome]) -> Times:
    """Put together what the parties noted, release by release."""
    sites = [
        {(b, s): (c, h) for b, s, c, h in json.loads((home.folder / TIMES).read_text())} for home in homes
    ]
    slots = [(block, slot) for block, slot, _, _ in notes["asked"]]
    computed, handled = np.max([[site[slot] for slot in slots] for site in sites], axis=0).T
    stamps = np.array(notes["asked"])[:, 2:]
    return Times(
        bare=np.array(notes["bare"]).ravel(),
        asked=stamps[:, 1] - stamps[:, 0],
        computed=computed,
        handled=handled,
        total=float(stamps[-1, 1] - stamps[0, 0]),
    )


def _latency_rows(sites: int, times: Times) -> list[Row]:
    median, late = 1e3 * np.percentile(times.online, (50, 95))
    bare = 1e3 * float(np.median(times.bare))
    what = f"online part of a release, {sites} sites"
    rows = [
        amount_row(f"{what}, median", float(median), bare, "an empty message, the same way", "ms"),
        Row(f"{what}, 95th percentile", float(late), None, "", "ms", None, "as much"),
    ]
    if sites == 4:
        rows.insert(1, amount_row(f"{what}, median", float(median), AIM_MS, "the aim", "ms", target=1.0))
    return rows


def _idle_row(size: Size, times: Times) -> Row:
    what = f"{len(times.asked) - 1:,} iterations, {size.sites} x {size.people} people: time not computing"
    return amount_row(what, times.total * times.idle, times.total, "all of it", "s", target=0.5)


def run(console: Console, sites: Sequence[int] = (4, 10), quick: bool = False) -> Section:
    """Measure every row; quickly, all of them in one small run."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CLOCK), str(ROOT), os.environ.get("PYTHONPATH", "")])
    probes = 20 if quick else 300
    rows: list[Row] = []
    notes: list[str] = []
    for n_sites in sites:
        size = Size(n_sites, iterations=40 if quick else 300)
        console.print(f"{n_sites} sites ...")
        times = measure(size, probes)
        rows += _latency_rows(n_sites, times)
        notes.append(_share_of_the_site(n_sites, times))
    if not quick:
        size = Size(people=256, length=250, iterations=1000)
        console.print(f"{size.iterations:,} iterations ...")
        times = measure(size, probes)
    rows.append(_idle_row(size, times))
    return Section(
        "federated",
        "Studies across processes by NVIDIA FLARE, over mutual TLS on one machine",
        rows,
        (
            *notes,
            "Releases of 420 values; the paper's method with 20 components and wide masks, epsilon 10.",
            "All sites and the server share the cores and the disk of this machine.",
        ),
        "python -m benchmarks.federated",
    )


def _share_of_the_site(sites: int, times: Times) -> str:
    seconds = float(np.median((times.handled - times.computed)[WARM_UP:]))
    return f"{sites} sites: of that, noise, ledger and answer take the slowest site {1e3 * seconds:.1f} ms."


def main(arguments: list[str] | None = None) -> int:
    """Measure, show, and write the evidence unless it was quick or only in part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federated", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    parser.add_argument("--sites", type=int, help="only with so many; 4 and 10 by default")
    parser.add_argument("--against", type=Path, metavar="TREE", help="with a worktree of an earlier commit")
    parser.add_argument("--rounds", type=int, default=5, help="how often, with --against")
    given = parser.parse_args(arguments)
    if given.against is not None and not (given.against / "benchmarks" / "federated.py").is_file():
        parser.error(f"--against takes a worktree of an earlier commit, got {given.against}")
    if given.sites is not None and not 3 <= given.sites <= 50:
        parser.error(f"--sites must lie between 3 and 50, got {given.sites}")
    console = Console(width=None if sys.stdout.isatty() else EVIDENCE_WIDTH)
    if given.against is not None:
        # It imports this module in another process.
        from benchmarks.trees import against

        section = against.run(console, given.against, given.rounds)
    else:
        default = (4,) if given.quick else (4, 10)
        section = run(console, default if given.sites is None else (given.sites,), given.quick)
    show(section, console)
    if not given.quick and given.sites is None:
        write_evidence(section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
