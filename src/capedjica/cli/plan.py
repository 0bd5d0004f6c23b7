"""``capedjica plan``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from capedjica.errors import InputError


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"{name} must be whole numbers separated by commas, got {text!r}") from None


def _colluding(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def plan(
    sites: Annotated[
        int | None, typer.Option(help="Number of sites, S; by default one per number of subjects, or 4.")
    ] = None,
    subjects: Annotated[
        str, typer.Option(help="Subjects in all, or one number per site: 26,175,60.")
    ] = "1024",
    components: Annotated[int, typer.Option(help="Components to estimate, R.")] = 20,
    features: Annotated[int, typer.Option(help="Voxels or regions of the data, D.")] = 900,
    epsilon: Annotated[
        float | None, typer.Option(help="Total privacy budget of all stages; the noise is found.")
    ] = None,
    epsilon_per_iteration: Annotated[
        float | None,
        typer.Option(help="The paper's epsilon_i instead: its noise is taken, the total is found."),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the guarantee.")] = 1e-5,
    colluding: Annotated[
        str,
        typer.Option(help="Sites that may side with the aggregator, S_C; 'third' is max(1, ceil(S/3)-1)."),
    ] = "third",
    iterations: Annotated[int, typer.Option(help="Most iterations of the gradient descent, J.")] = 1000,
    mask: Annotated[
        str, typer.Option(help="'uniform' (as wide as the ring) or 'paper' (Gaussian).")
    ] = "uniform",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a study will release, how noisy it will be and what it costs, before anything is computed.

    Give --epsilon to find its noise, or --epsilon-per-iteration to find the cost of the paper's noise.
    """
    from capedjica.study import planning
    from capedjica.study.plan_text import show_plan

    if (epsilon is None) == (epsilon_per_iteration is None):
        given = "neither" if epsilon is None else "both"
        raise InputError(f"give either --epsilon or --epsilon-per-iteration, got {given}")
    enrolled = _numbers("subjects", subjects)
    if sites is None:
        sites = len(enrolled) if len(enrolled) > 1 else 4
    setting = planning.Setting(
        subjects=planning.spread_subjects(enrolled, sites),
        n_components=components,
        n_features=features,
        delta=delta,
        n_colluding=_colluding(colluding),
        n_iterations=iterations,
        mask=planning.parse_mask(mask),
    )
    if epsilon is not None:
        result = planning.plan_for_epsilon(setting, epsilon)
    else:
        assert epsilon_per_iteration is not None
        result = planning.plan_for_noise(setting, epsilon_per_iteration)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        show_plan(result, Console(highlight=False))
