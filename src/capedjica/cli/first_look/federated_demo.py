"""``capedjica federated-demo``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capedjica.errors import InputError


def federated_demo(
    out: Annotated[Path, typer.Option(help="A new folder for everything.")] = Path(
        "capedjica-federated-demo"
    ),
    subjects: Annotated[int, typer.Option(help="People in all, at four hospitals.")] = 256,
    components: Annotated[int, typer.Option(help="Networks to find.")] = 8,
    epsilon: Annotated[float, typer.Option(help="Total privacy budget of each person.")] = 3.0,
    port: Annotated[int | None, typer.Option(help="Port of the server; by default a free one.")] = None,
    seed: Annotated[int, typer.Option(help="Of the synthetic data; the private noise is never seeded.")] = 0,
) -> None:
    """Watch a server and four hospitals, each a process of its own, find brain networks over mutual TLS.

    Everything that a real consortium does, on this machine, with people who do not exist: simulate, seal the
    study, approve it, start the sites, run, report. No process is left behind.
    """
    from capedjica.cli.coordinator.following import follower
    from capedjica.cli.coordinator.run import progress_bars
    from capedjica.cli.options import need_flare

    need_flare()
    from capedjica.coordinator.planning.plan import spread_subjects
    from capedjica.one_machine.flare_demo import run_demo
    from capedjica.one_machine.simulation import Simulation

    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and is not empty: give a new folder")
    simulation = Simulation.usual(
        "npy", subjects=spread_subjects([subjects], 4), n_components=components, epsilon=epsilon, seed=seed
    )
    console = Console(highlight=False, markup=False)
    with progress_bars(console) as progress:
        result = run_demo(simulation, out, port, lambda text: _say(console, text), follower(progress))
    console.print(
        f"Gain index {result.gain_index:.3f} (0 is perfect, below 0.1 is usable); the maps correlate "
        f"{result.map_correlation:.2f} with the true ones."
    )
    typer.echo(f"The report, for a browser: {result.report}")
    typer.echo(f"Everything else: {shlex.quote(str(out))}")


def _say(console: Console, text: str) -> None:
    console.print(f"$ {text}", style="dim", soft_wrap=True)
