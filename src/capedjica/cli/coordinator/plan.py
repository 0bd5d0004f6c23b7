"""``capedjica plan``: the releases, noise and cost of a study before it runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from capedjica.cli.options import JsonOption
from capedjica.cli.progress import counting
from capedjica.errors import InputError

if TYPE_CHECKING:
    from capedjica.coordinator.planning.prediction import Prediction
    from capedjica.study.study_file import Study


def plan(
    study: Annotated[
        Path | None,
        typer.Argument(metavar="STUDY", help="The study.toml to plan, or its folder."),
    ] = None,
    sites: Annotated[
        int | None, typer.Option(help="Number of sites, S; by default one per number in --subjects, or 4.")
    ] = None,
    subjects: Annotated[
        str | None, typer.Option(help="Total subjects, or one number per site: 26,175,60 (default 1024).")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method: 'subject' (default) or 'paper' (capePCA, then capeDJICA).")
    ] = None,
    components: Annotated[int | None, typer.Option(help="Components to estimate, R (default 20).")] = None,
    features: Annotated[
        int | None, typer.Option(help="Voxels or regions of the data, D (default 900).")
    ] = None,
    timepoints: Annotated[
        int | None, typer.Option(help="Time points of a typical scan (default 250).")
    ] = None,
    image_shape: Annotated[
        str | None, typer.Option(help="Image size if features are pixels, for example 30x30.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Total privacy budget of all stages; determines the noise.")
    ] = None,
    epsilon_per_iteration: Annotated[
        float | None,
        typer.Option(
            help="With --method paper: the paper's epsilon_i, which determines noise and total epsilon."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee (default 1e-5).")] = None,
    colluding: Annotated[
        str | None,
        typer.Option(help="Number of colluding sites, S_C; 'third' (default) is max(1, ceil(S/3)-1)."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Maximum iterations, J; the default depends on the method.")
    ] = None,
    masking: Annotated[
        str | None,
        typer.Option(
            "--masking",
            "--mask",
            help="Masks: 'uniform' on the ring (default) or 'paper' (Gaussian).",
        ),
    ] = None,
    predict: Annotated[
        bool,
        typer.Option("--predict", help="Also predict the quality of the maps by simulation."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the releases, noise and cost of a planned study.

    No data are read.
    Give a study.toml; or --epsilon to determine the noise; or, with --method paper, --epsilon-per-iteration
    to determine the cost of the paper's noise. With --predict, the quality of the maps is predicted as well.
    """
    from capedjica.coordinator.planning.plan import plan_paper_noise, plan_study
    from capedjica.coordinator.planning.plan_text import show_plan, show_prediction

    given = {
        "--sites": sites,
        "--subjects": None if subjects is None else whole_numbers("--subjects", subjects),
        "--method": method,
        "--components": components,
        "--features": features,
        "--timepoints": timepoints,
        "--image-shape": None if image_shape is None else image_size(image_shape),
        "--epsilon": epsilon,
        "--epsilon-per-iteration": epsilon_per_iteration,
        "--delta": delta,
        "--colluding": _number_or_word(colluding),
        "--iterations": iterations,
        "--masking": masking,
    }
    flags = {flag: value for flag, value in given.items() if value is not None}
    chosen = _study_of_flags(flags) if study is None else _study_of_file(study, flags)
    if epsilon_per_iteration is None:
        result = plan_study(chosen)
    else:
        result = plan_paper_noise(chosen, epsilon_per_iteration)
    prediction = _predicted(chosen) if predict else None
    if as_json:
        extra = {} if prediction is None else {"prediction": prediction.as_dict()}
        typer.echo(json.dumps(result.as_dict() | extra, indent=2))
        return
    console = Console(highlight=False)
    show_plan(result, console)
    if prediction is not None:
        show_prediction(prediction, console)


def _predicted(study: Study) -> Prediction:
    """Predict the quality of a study, with a progress bar on standard error."""
    from capedjica.coordinator.planning.prediction import predict

    console = Console(stderr=True)
    with counting("simulating", console) as progress:
        task = progress.add_task("", total=None)
        return predict(study, lambda total: progress.update(task, total=total, advance=1))


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise InputError(f"{flag} must be whole numbers separated by commas, got {text!r}") from None


def image_size(text: str) -> tuple[int, int]:
    """Read the height and width of an image, as in 30x30."""
    height, _, width = text.partition("x")
    try:
        return int(height), int(width)
    except ValueError:
        raise InputError(
            f"--image-shape must be the height and width of an image, such as 30x30, got {text!r}"
        ) from None


def _number_or_word(text: str | None) -> int | str | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return text


def _study_of_flags(flags: dict[str, Any]) -> Study:
    from capedjica.algorithms.ica.scan_length import TYPICAL_SCAN
    from capedjica.coordinator.planning.plan import sketch, spread_subjects
    from capedjica.data.features import FeatureTable
    from capedjica.study.analyses import IcaTable
    from capedjica.study.study_file import PrivacyTable

    epsilon, epsilon_i = flags.get("--epsilon"), flags.get("--epsilon-per-iteration")
    if epsilon_i is not None and flags.get("--method") != "paper":
        raise InputError("--epsilon-per-iteration is only for the paper's method; add --method paper")
    if (epsilon is None) == (epsilon_i is None):
        one = "none of them" if epsilon is None else "both options"
        raise InputError(f"give one of a study.toml, --epsilon and --epsilon-per-iteration; got {one}")
    subjects = flags.get("--subjects", (1024,))
    sites = flags.get("--sites", len(subjects) if len(subjects) > 1 else 4)
    shape = flags.get("--image-shape")
    analysis = IcaTable(
        method=flags.get("--method", "subject"),
        n_components=flags.get("--components", 20),
        max_iter=flags.get("--iterations"),
    )
    features = FeatureTable(
        n_features=flags.get("--features", math.prod(shape) if shape else 900),
        scan_length=flags.get("--timepoints", TYPICAL_SCAN),
        image_shape=shape,
    )
    # With the paper's noise, this epsilon is not used.
    privacy: dict[str, Any] = {"epsilon": 1.0 if epsilon is None else epsilon} | {
        key: flags[flag]
        for flag, key in {"--delta": "delta", "--colluding": "n_colluding", "--masking": "masking"}.items()
        if flag in flags
    }
    return sketch(spread_subjects(subjects, sites), analysis, features, PrivacyTable(**privacy))


def _study_of_file(path: Path, flags: dict[str, Any]) -> Study:
    from capedjica.study.study_file import Study

    study = Study.load(path)
    if "--epsilon-per-iteration" in flags:
        raise InputError(
            "--epsilon-per-iteration cannot be combined with a study.toml, which has its own epsilon; give "
            "one of them"
        )
    for flag, its_own in _own_values(study).items():
        if flag in flags and flags[flag] not in its_own:
            raise InputError(
                f"{flag} {_said(flags[flag])} contradicts the study, which has {_said(its_own[0])}; omit "
                f"{flag} or edit the study"
            )
    return study


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _own_values(study: Study) -> dict[str, list[Any]]:
    """Return for every flag the values that agree with the study."""
    features, privacy, contract = study.content.features, study.content.privacy, study.contract
    networks = study.content.networks
    return {
        "--sites": [len(contract.subjects)],
        "--subjects": [contract.subjects, (study.n_subjects,)],
        "--method": [getattr(networks, "method", None)],
        "--components": [getattr(networks, "n_components", None)],
        "--features": [features.n_features],
        "--timepoints": [features.scan_length],
        "--image-shape": [features.image_shape],
        "--epsilon": [privacy.epsilon],
        "--delta": [privacy.delta],
        "--colluding": [privacy.n_colluding, contract.roster.n_colluding],
        "--iterations": [getattr(networks, "max_iter", None)],
        "--masking": [privacy.masking],
    }
