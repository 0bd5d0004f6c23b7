"""``capedjica simulate``: a study with simulated participants."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from capedjica.cli.progress import counting
from capedjica.errors import InputError

if TYPE_CHECKING:
    from capedjica.one_machine.simulation import Simulation


def simulate(
    out: Annotated[Path, typer.Argument(help="Folder to create.")],
    sites: Annotated[
        int | None, typer.Option(help="Number of sites; by default one per number in --subjects, or 4.")
    ] = None,
    subjects: Annotated[str, typer.Option(help="Total subjects, or one number per site: 26,175,60.")] = "256",
    components: Annotated[
        int | None, typer.Option(help="Number of networks, R; by default 10 (6 for images).")
    ] = None,
    timepoints: Annotated[
        str | None,
        typer.Option(
            help="Time points per scan, or the shortest and longest scan: 150-250. By default 200 "
            "(120-160 for images)."
        ),
    ] = None,
    image_side: Annotated[
        int | None, typer.Option(help="Pixels per side of the images in tables; by default 24.")
    ] = None,
    voxel_size: Annotated[
        float | None, typer.Option(help="Voxel size of nifti and bids in mm; by default 8.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="White noise in the scans, relative to the signal; by default 0 (1 for images)."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Total privacy budget of the study; by default 3 (10 for images).")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="Tables: npy or csv; images: nifti (4-D, one or two per participant) or bids (fMRIPrep "
            "derivatives with confounds).",
        ),
    ] = "npy",
    seed: Annotated[int, typer.Option(help="Seed of the scans; privacy noise is never seeded.")] = 0,
    group_difference: Annotated[
        float | None,
        typer.Option(
            help="Difference between patients and controls in the log standard deviations of two networks; "
            "the study compares the two groups."
        ),
    ] = None,
) -> None:
    """Create a study with simulated participants.

    The ground truth is known. Use it to try out all other commands.
    """
    from capedjica.coordinator.planning.plan import spread_subjects
    from capedjica.one_machine.simulation import Simulation
    from capedjica.one_machine.simulation import simulate as write_simulation

    enrolled = _numbers("subjects", subjects, ",")
    if sites is None:
        sites = len(enrolled) if len(enrolled) > 1 else 4
    simulation = Simulation.usual(
        file_format,
        subjects=spread_subjects(enrolled, sites),
        n_components=components,
        n_timepoints=None if timepoints is None else _shortest_and_longest(timepoints),
        image_side=image_side,
        voxel_size=voxel_size,
        noise=noise,
        epsilon=epsilon,
        delta=delta,
        seed=seed,
        group_difference=group_difference,
    )
    console = Console()
    with counting("writing scans", console) as progress:
        task = progress.add_task("", total=simulation.n_subjects)
        write_simulation(simulation, out, lambda: progress.advance(task))
    _show(simulation, out)


def _numbers(name: str, text: str, separator: str) -> list[int]:
    try:
        return [int(part) for part in text.split(separator)]
    except ValueError:
        raise InputError(f"{name} must be whole numbers separated by {separator!r}, got {text!r}") from None


def _shortest_and_longest(text: str) -> tuple[int, int]:
    lengths = _numbers("timepoints", text, "-")
    if len(lengths) > 2:
        raise InputError(f"timepoints must be one number or a range such as 150-250, got {text!r}")
    return lengths[0], lengths[-1]


def _show(simulation: Simulation, out: Path) -> None:
    shortest, longest = simulation.n_timepoints
    lengths = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    study = shlex.quote(str(out / "study.toml"))
    typer.echo(
        f"Created {out}: {simulation.n_subjects} simulated participants at {len(simulation.subjects)} sites "
        f"({', '.join(map(str, simulation.subjects))}), {simulation.n_components} networks, scans of "
        f"{lengths} time points and {simulation.data.picture}.\n"
        f"All data are simulated. The ground truth is in {out / 'truth'}; no analysis reads it.\n"
        f"Next:\n  capedjica plan {study}\n  capedjica run {study}"
    )
