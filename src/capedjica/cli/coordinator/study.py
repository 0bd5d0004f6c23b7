"""``capedjica study``: write, show and extend a study.toml."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec
import typer
from rich.console import Console

from capedjica.cli.coordinator.plan import image_size
from capedjica.cli.options import JsonOption, need_web
from capedjica.errors import InputError
from capedjica.tools.text import counted

if TYPE_CHECKING:
    from capedjica.data.features import FeatureTable
    from capedjica.data.templates import GivenTemplate
    from capedjica.study.analyses.ica import IcaTable, MethodName
    from capedjica.study.study_file import SiteTable

# File name of a template next to a study.
TEMPLATE: Final = "template.npy"
app = typer.Typer(help="Write, show, extend and seal a study.toml.", no_args_is_help=True)


@app.command()
def show(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    as_json: JsonOption = False,
) -> None:
    """Explain a study in plain language.

    Shows the sites, what leaves each site, the privacy cost, and what happens if sites fail.
    """
    from capedjica.study.approval_text import describe, show_study
    from capedjica.study.study_file import Study

    given = Study.load(study)
    if as_json:
        typer.echo(json.dumps(describe(given), indent=2))
    else:
        show_study(given, Console(highlight=False))


@app.command()
def new(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")] = Path("study.toml"),
    title: Annotated[str | None, typer.Option(help="Title of the study.")] = None,
    components: Annotated[
        int | None, typer.Option(help="Number of networks, R; with --template, that of the template.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="subject (the default), template, guided, spatial or paper.")
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            help="Known networks: maps (4-D image), labels (3-D), an array (.npy) or an earlier results.zip; "
            "converted to template.npy next to the study."
        ),
    ] = None,
    template_names: Annotated[
        Path | None, typer.Option(help="Table of their names; by default the one next to the template.")
    ] = None,
    template_origin: Annotated[
        str | None,
        typer.Option(
            help="Origin that you vouch for: public (includes no participant of this study), earlier-study "
            "(private results), other-people (results without privacy, from no participant of this study)."
        ),
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Number of features, D; not needed with --image-shape.")
    ] = None,
    timepoints: Annotated[int | None, typer.Option(help="Time points of a typical scan.")] = None,
    image_shape: Annotated[
        str | None, typer.Option(help="Image size if features are pixels, for example 30x30.")
    ] = None,
    atlas: Annotated[
        Path | None, typer.Option(help="For images: atlas of labels (3-D) or maps (4-D); copied.")
    ] = None,
    regions: Annotated[
        Path | None,
        typer.Option(
            help="For tables: regions in the order of the columns, an image or a table of centres; copied."
        ),
    ] = None,
    mask: Annotated[Path | None, typer.Option(help="For images: brain mask; copied.")] = None,
    voxel_size: Annotated[
        float | None,
        typer.Option(help="For images: voxel size in mm, of the mask or the MNI152 brain."),
    ] = None,
    space: Annotated[str | None, typer.Option(help="For BIDS derivatives: required template space.")] = None,
    smoothing: Annotated[float | None, typer.Option(help="FWHM of spatial smoothing, in mm.")] = None,
    detrend: Annotated[
        bool, typer.Option("--detrend", help="Remove a linear trend from every time series.")
    ] = False,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Divide every feature by its standard deviation.")
    ] = False,
    low_pass: Annotated[float | None, typer.Option(help="Cut-off of the low-pass filter, in Hz.")] = None,
    high_pass: Annotated[float | None, typer.Option(help="Cut-off of the high-pass filter, in Hz.")] = None,
    confounds: Annotated[
        str | None, typer.Option(help="nilearn's strategies for fMRIPrep's confounds: motion,wm_csf.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget per participant.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    site: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Card or its file (CARD:SUBJECTS if it does not state the number); or a site's folder, "
            "whose scans are counted. Repeatable.",
        ),
    ] = None,
    sites_folder: Annotated[
        Path | None, typer.Option("--sites", help="Folder on this machine with the folders of all sites.")
    ] = None,
    site_file: Annotated[
        Path | None, typer.Option(help="Text file with one site per line, as for --site.")
    ] = None,
) -> None:
    """Write a study.toml from options.

    On a terminal, the command prompts for missing options.
    With fewer than two sites the study is a draft; add more with `capedjica study add-site`.
    """
    from capedjica.coordinator.new_study import (
        as_file,
        beside,
        n_features_of,
        read_site_file,
        read_sites,
        region_names,
    )
    from capedjica.coordinator.new_study import template_of as read
    from capedjica.data.centres import APPROXIMATE, is_table
    from capedjica.one_machine.local_run import check_widths, site_files, site_of_folder, sites_of_folder
    from capedjica.study.study_file import PrivacyTable, Study, StudyFile, write_study

    file = out / "study.toml" if out.is_dir() else out
    if file.exists():
        raise InputError(f"{file} already exists and is not overwritten; give another file")
    shape = None if image_shape is None else image_size(image_shape)
    folders: list[str | Path] = []

    def of_folder(folder: str, subjects: int | None) -> SiteTable:
        folders.append(folder)
        return site_of_folder(folder, subjects)

    sites = read_sites(site or [], "--site", of_folder)
    if sites_folder:
        sites += sites_of_folder(sites_folder)
        folders += site_files(sites_folder)
    if site_file:
        sites += read_site_file(site_file, of_folder)
    if atlas is not None and regions is not None:
        raise InputError("--atlas is for images and --regions is for tables; got both, give only one")
    images = {"atlas": atlas or regions, "mask": mask}
    table = _feature_table(
        images,
        regions is not None,
        voxel_size=voxel_size,
        space=space,
        smoothing_fwhm=smoothing,
        detrend=detrend,
        standardize=standardize,
        low_pass=low_pass,
        high_pass=high_pass,
        confounds=tuple(confounds.split(",")) if confounds else (),
    )
    if features is None:
        features = math.prod(shape) if shape else n_features_of(table, images)
    _check_template_options(method, template, template_names, template_origin)
    known = None if template is None else read(template, table, images, features, template_names)
    if known is not None:
        features = known.template.n_features
    answers = _complete(
        {
            "--title": title,
            "--components": _n_networks(components, known),
            "--features": features,
            "--timepoints": timepoints,
            "--epsilon": epsilon,
        },
        sites,
    )
    content = StudyFile(
        title=answers["--title"],
        analyses=(_analysis(answers["--components"], method, known, template_origin),),
        features=msgspec.structs.replace(
            table,
            n_features=answers["--features"],
            scan_length=answers["--timepoints"],
            image_shape=shape,
        ),
        privacy=PrivacyTable(epsilon=answers["--epsilon"], delta=delta),
        sites=tuple(sites),
    )
    check_widths(folders, content.features)
    draft = len(sites) < 2
    made = {} if known is None else {TEMPLATE: as_file(known.template.maps)}
    names = region_names(regions or atlas)
    with beside(file.parent, images | {"names": names}, made):
        write_study(file, content, draft=draft)
    typer.echo(f"Wrote {file}. Review it, and edit it if needed.")
    for name in [*(path.name for path in images.values() if path), *made]:
        typer.echo(f"It needs {file.parent / name}: share both files together.")
    if regions is not None and is_table(regions):
        typer.echo(APPROXIMATE)
    elif names is not None:
        typer.echo(f"Regions are named by {file.parent / names.name}.")
    elif regions is not None:
        typer.echo(f"Regions have numbers but no names: there is no table of names next to {regions}.")
    if draft:
        typer.echo(f"It is a draft with {counted(len(sites), 'site')}; a study needs at least 2.")
        typer.echo(f"Next: capedjica study add-site CARD... --study {file}")
        return
    typer.echo(f"Its hash, to be compared with the other parties:\n  {Study.load(file).hash.hex()}")
    typer.echo(f"Next: capedjica study show {file}; capedjica plan {file}")


@app.command()
def add_site(
    cards: Annotated[list[str], typer.Argument(metavar="CARD...", help="Site cards, or their files.")],
    subjects: Annotated[
        int | None, typer.Option(help="Number of participants, if the card does not state it.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of these sites, if it differs from the study's.")
    ] = None,
    study: Annotated[Path, typer.Option(help="The study.toml, or its folder.")] = Path("study.toml"),
) -> None:
    """Add sites to a study.toml by their cards.

    The study must not be sealed yet. Either all sites are added or none, and the rest of the file is
    unchanged. A card written by `capedjica site enrol` states the number of participants.
    """
    from capedjica.coordinator import drafts
    from capedjica.coordinator.new_study import site_of_card
    from capedjica.securesum.identity import PublicIdentity
    from capedjica.study.study_file import study_path
    from capedjica.tools.toml import listed

    file = study_path(study)
    sites = [site_of_card(card, subjects, epsilon) for card in cards]
    grown = drafts.add_sites(file, sites)
    for site in sites:
        typer.echo(f"Added site {site.name} with {counted(site.subjects, 'participant')} to {file}.")
        typer.echo(
            "Its fingerprint, to be compared with the site by phone or in person:\n  "
            f"{PublicIdentity.from_card(site.card).fingerprint}"
        )
    typer.echo(f"Sites now: {len(grown.content.sites)}.")
    found = grown.problems()
    if found:
        typer.echo(listed("Not ready yet", found))
    else:
        typer.echo(f"The study's hash is now:\n  {grown.hash.hex()}")
        typer.echo(f"Next: capedjica study show {file}; capedjica plan {file}")


@app.command()
def sites(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    as_json: JsonOption = False,
) -> None:
    """List the sites of a study or a draft.

    With the fingerprint of each, and what the study still lacks.
    """
    from capedjica.coordinator.drafts import site_list
    from capedjica.tools.text import printable
    from capedjica.tools.toml import listed

    facts = site_list(study)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{printable(facts['title'])}: {len(facts['sites'])} sites.")
    for site in facts["sites"]:
        typer.echo(f"{site['name']}: {site['participants']:,} participants\n  {site['fingerprint']}")
    if facts["problems"]:
        typer.echo(listed("Not ready yet", facts["problems"]))
    else:
        typer.echo(f"The study's hash:\n  {facts['hash']}")


@app.command()
def web(
    study: Annotated[
        Path, typer.Argument(metavar="[STUDY]", help="The study.toml, or the folder for it.")
    ] = Path("."),
    port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1, for a tunnel; by default a free one.")
    ] = None,
    idle: Annotated[float, typer.Option(help="Minutes without use until the pages are locked.")] = 15.0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Serve local web pages for the coordinator.

    Only on the loopback interface. The pages run the same commands as this program, and name each of them.
    """
    need_web()
    from capedjica.web.server import serve
    from capedjica.web.study_pages import StudyPages

    serve(StudyPages(study.absolute()), port=port, idle_minutes=idle, browser=not no_browser)


def _check_template_options(
    method: str | None, template: Path | None, names: Path | None, origin: str | None
) -> None:
    from capedjica.study.analyses.ica import METHODS, WITH_TEMPLATE

    if method is not None and method not in METHODS:
        raise InputError(f"--method must be one of {', '.join(METHODS)}; got {method!r}")
    wants = method in WITH_TEMPLATE
    if template is None:
        if wants:
            raise InputError(f"--method {method} needs --template, a file of known networks")
        for flag, value in (("--template-names", names), ("--template-origin", origin)):
            if value is not None:
                raise InputError(f"{flag} is given, but no --template; give both or neither")
    elif not wants:
        got = f"--method {method}" if method else "no --method"
        raise InputError(f"--template needs --method template or guided; got {got}")


def _n_networks(components: int | None, known: GivenTemplate | None) -> int | None:
    if known is None:
        return components
    count = known.template.n_networks
    if components not in (None, count):
        raise InputError(
            f"--components is {components}, but the template has {count} networks; omit --components"
        )
    return count


def _analysis(
    n_components: int, method: str | None, known: GivenTemplate | None, said: str | None
) -> IcaTable:
    """Return the analysis, with the origin and names of its template."""
    from capedjica.data.templates import ORIGINS
    from capedjica.study.analyses.ica import IcaTable

    chosen = cast("MethodName", method or "subject")
    if known is None:
        return IcaTable(n_components=n_components, method=chosen)
    origin = known.origin(said, "--template-origin")
    if origin is None:
        raise InputError(
            f"--template-origin is missing; expected the origin of the template, for which you vouch: "
            f"{', '.join(ORIGINS)}"
        )
    return IcaTable(
        n_components=n_components,
        method=chosen,
        template=TEMPLATE,
        template_origin=origin,
        template_source=known.source,
        template_names=known.template.own_names,
        template_systems=known.systems,
    )


def _feature_table(images: dict[str, Path | None], of_tables: bool, **options: Any) -> FeatureTable:
    """Return the table of features, of the kind that matches the given options."""
    from capedjica.data.features import FeatureTable

    names: dict[str, Any] = {key: path.name for key, path in images.items() if path is not None}
    kind: Literal["atlas", "voxels", "columns"] = "atlas" if "atlas" in names else "columns"
    if kind == "columns" and (names or options["voxel_size"]):
        kind = "voxels"
    if of_tables:
        kind = "columns"
    return FeatureTable(kind=kind, **names, **options)


_QUESTIONS: dict[str, tuple[str, type]] = {
    "--title": ("Title of the study", str),
    "--components": ("Number of networks to estimate", int),
    "--features": ("Number of features (voxels or regions)", int),
    "--timepoints": ("Number of time points of a typical scan", int),
    "--epsilon": ("Privacy budget per participant (epsilon)", float),
}


def _complete(given: dict[str, Any], sites: list[SiteTable]) -> dict[str, Any]:
    """Prompt for missing options and sites on a terminal; otherwise, only sites may be missing."""
    missing = [flag for flag, value in given.items() if value is None]
    if not sys.stdin.isatty():
        if missing:
            other = " (for images: --voxel-size, --mask or --atlas)" if "--features" in missing else ""
            raise InputError(f"missing options: {', '.join(missing)}{other}")
        return given
    answers = {flag: typer.prompt(_QUESTIONS[flag][0], type=_QUESTIONS[flag][1]) for flag in missing}
    if len(sites) < 2:
        _ask_for_sites(sites)
    return given | answers


def _ask_for_sites(sites: list[SiteTable]) -> None:
    from capedjica.coordinator.new_study import SITE_FORMS, read_site
    from capedjica.one_machine.local_run import site_of_folder

    typer.echo(f"Enter each site as {SITE_FORMS}; an empty line ends the list.")
    while True:
        text = typer.prompt(f"Site {len(sites) + 1}", default="", show_default=False)
        if not text.strip():
            return
        try:
            sites.append(read_site(text, site_of_folder))
        except InputError as error:
            typer.echo(str(error))
