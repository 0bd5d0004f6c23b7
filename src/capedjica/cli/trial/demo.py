"""``capedjica demo``, in one process, and ``capedjica federated-demo``, with a server and sites."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from capedjica.errors import InputError

if TYPE_CHECKING:
    from capedjica.one_machine.demo import Demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures and the results.")] = Path(
        "capedjica-demo"
    ),
    epsilon: Annotated[float, typer.Option(help="Total privacy budget per participant.")] = 2.0,
    subjects: Annotated[int, typer.Option(help="Total participants at four hospitals.")] = 512,
    components: Annotated[int, typer.Option(help="Number of networks.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic data; privacy noise is never seeded.")] = 0,
) -> None:
    """Run a demonstration with four simulated hospitals.

    They estimate brain networks without sharing scans, on data with a known ground truth.
    """
    from capedjica.one_machine.demo import WAYS, prepare_folder, run_demo, write_demo
    from capedjica.privacy import validate
    from capedjica.privacy.wording import NOT_PRIVATE

    validate.positive("epsilon", epsilon)
    prepare_folder(out)
    console = Console(highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {
            name: progress.add_task(way.title, total=None, status="", start=False)
            for name, way in WAYS.items()
        }
        progress.start_task(tasks["cape"])
        progress.update(tasks["cape"], status="simulating data, estimating the subspace")

        def report(name: str, iteration: int, spent: float, gain_index: float) -> None:
            if iteration == 1:
                for earlier in list(tasks)[: list(tasks).index(name)]:
                    progress.update(tasks[earlier], total=1, completed=1)
                progress.start_task(tasks[name])
            cost = NOT_PRIVATE if name == "none" else f"epsilon {spent:.2f}"
            progress.update(tasks[name], status=f"{cost}, gain index {gain_index:.3f}")

        result = run_demo(subjects, components, epsilon, seed, report)
        progress.update(tasks["paper"], total=1, completed=1)
    write_demo(result, out)
    _show(result, out, console)


def _show(demo: Demo, out: Path, console: Console) -> None:
    from capedjica.one_machine.demo import WAYS
    from capedjica.privacy.wording import NOT_PRIVATE, round_up
    from capedjica.report.data_location import IN_ONE_PROCESS

    private, privacy = demo.private, demo.private.estimator.privacy_
    sizes = [len(site) for site in demo.study.sites]
    usable = "good" if private.gain_index[-1] < 0.1 else "too noisy to use"
    console.print()
    if demo.reliability.banner:
        console.print(demo.reliability.banner, style="bold yellow")
    console.print(
        f"[bold]{demo.reliability.headline} from {sum(sizes)} participants at {len(sizes)} hospitals[/] "
        f"({', '.join(map(str, sizes))}); simulated, and {IN_ONE_PROCESS.short}. Each hospital sent "
        f"{len(privacy.releases)} sums, with masks and noise."
    )
    console.print(demo.reliability.prediction)
    console.print(
        f"[bold]Quality:[/] gain index {private.gain_index[-1]:.3f} (0 is perfect, below 0.1 is usable: "
        f"{usable}); the maps have a mean correlation of {private.map_correlation:.2f} with the true ones."
    )
    console.print(f"[bold]Privacy cost:[/] {' '.join(privacy.guarantee.summary)}")
    table = Table(box=None, header_style="dim", padding=(0, 2), pad_edge=False)
    for index, column in enumerate(("", "gain index", "map correlation", "epsilon")):
        table.add_column(column, justify="left" if index == 0 else "right")
    for run in demo.runs:
        table.add_row(
            WAYS[run.name].title,
            f"{run.gain_index[-1]:.3f}",
            f"{run.map_correlation:.2f}",
            NOT_PRIVATE if run.name == "none" else round_up(demo.epsilon),
            style="bold" if run is private else "",
        )
    console.print("\n[bold]Comparison with other analyses:[/]")
    console.print(table)
    console.print(
        f"\nReport (HTML): {out / 'report.html'}. Figures: {out / 'maps.png'} and "
        f"{out / 'convergence.png'}. Numbers: {out / 'result.json'}."
    )


def federated_demo(
    out: Annotated[Path, typer.Option(help="New folder for all files.")] = Path("capedjica-federated-demo"),
    subjects: Annotated[int, typer.Option(help="Total participants at four hospitals.")] = 256,
    components: Annotated[int, typer.Option(help="Number of networks.")] = 8,
    epsilon: Annotated[float, typer.Option(help="Total privacy budget per participant.")] = 6.0,
    port: Annotated[int | None, typer.Option(help="Port of the server; by default a free one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic data; privacy noise is never seeded.")] = 0,
) -> None:
    """Run the demonstration with a server, over mutual TLS.

    The server and each of four hospitals run as separate processes.
    The demonstration performs all steps of a real consortium on this machine, with simulated participants:
    simulate, seal the study, approve it, start the sites, run, report. All processes are stopped at the end.
    """
    from capedjica.cli.coordinator.run import follower
    from capedjica.cli.options import need_flare
    from capedjica.cli.progress import progress_bars

    need_flare()
    from capedjica.coordinator.planning.plan import spread_subjects
    from capedjica.one_machine.flare_demo import run_demo
    from capedjica.one_machine.simulation import Simulation

    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and is not empty; give a new folder")
    simulation = Simulation.usual(
        "npy", subjects=spread_subjects([subjects], 4), n_components=components, epsilon=epsilon, seed=seed
    )
    console = Console(highlight=False, markup=False)
    with progress_bars(console) as progress:
        result = run_demo(
            simulation,
            out,
            port,
            lambda text: console.print(f"$ {text}", style="dim", soft_wrap=True),
            follower(progress),
        )
    for words, style in (
        (result.reliability.banner, "bold yellow"),
        (result.reliability.prediction, ""),
    ):
        if words:
            console.print(words, style=style)
    console.print(
        f"Gain index {result.gain_index:.3f} (0 is perfect, below 0.1 is usable); the maps have a mean "
        f"correlation of {result.map_correlation:.2f} with the true ones."
    )
    typer.echo(f"Report (HTML): {result.report}")
    typer.echo(f"All other files: {shlex.quote(str(out))}")
