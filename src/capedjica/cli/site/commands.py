"""``capedjica site``: commands for the data manager of a hospital."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from capedjica.cli.options import JsonOption, SiteArgument, by_role, need_web, of_a_site
from capedjica.cli.progress import counting
from capedjica.errors import CapedjicaError, InputError

if TYPE_CHECKING:
    from capedjica.site.home import SiteHome
    from capedjica.study.study_file import Study

StudyOption = Annotated[Path | None, typer.Option("--study", help="Study: its study.toml or folder.")]

app = typer.Typer(
    help="Manage a site: its limits, participants and studies.",
    no_args_is_help=True,
    cls=by_role(
        Site_and_participants=(
            "init",
            "show",
            "check",
            "enrol",
            "withdraw",
            "rotate-key",
            "migrate",
            "web",
        ),
        Studies=("join", "approve", "start", "status", "stop", "revoke", "forget"),
        Releases_and_results=("outbox", "results", "report", "purge"),
        For_system_managers=("agent", "carrier"),
    ),
)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of this site in studies.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder for its files; by default ./NAME.")
    ] = None,
    total_epsilon: Annotated[
        float, typer.Option(help="Largest epsilon ever spent on one subject by all studies in total.")
    ] = 10.0,
    study_epsilon: Annotated[
        float | None,
        typer.Option(help="Largest epsilon of any one study; by default 2, or the total if that is less."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of both limits.")] = 1e-5,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the scans, or a table with a row per participant; by default 'data' in the "
            "site's folder."
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(help="Kind of data: files, nifti, bids, abide, table, or auto to detect it."),
    ] = "auto",
    abide_site: Annotated[str | None, typer.Option(help="ABIDE site whose scans to use.")] = None,
) -> None:
    """Create a site: its key, limits and card.

    The private key never leaves the site. site.toml holds the limits. The card is for the coordinator and the
    other sites. Limits and data folder are checked first; nothing is created if they are invalid.
    """
    from capedjica.data.layouts import data_kind, find_people
    from capedjica.site.home import SiteHome

    found = None if data is None else find_people(data_kind(kind), data, abide_site=abide_site)
    home = SiteHome.create(
        folder or Path(name),
        name,
        total_epsilon,
        min(2.0, total_epsilon) if study_epsilon is None else study_epsilon,
        delta,
        data="data" if data is None else str(data.absolute()),
        data_kind=data_kind(kind),
        abide_site=abide_site,
    )
    card = home.card()
    typer.echo(f"Created {home.folder / 'site.toml'}. Review it and edit the settings as needed.")
    if found is None:
        typer.echo(f"Put the scans into {home.data_path}, or set their path in site.toml.")
    else:
        typer.echo(f"Found {len(found.people):,} participants in {data}.")
    typer.echo(
        f"Site card, also saved as {home.card_path}; send it to the coordinator after `capedjica site "
        f"enrol`, which adds the number of participants:\n  {card.card}"
    )
    typer.echo(f"Fingerprint of the key, to compare by phone or in person:\n  {card.fingerprint}")
    typer.echo(f"Next: capedjica site check {shlex.quote(str(home.folder))}")


@app.command()
@of_a_site
def approve(
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="A study.toml or its folder, or a kit (NAME.zip)."),
    ],
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a prompt.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show the terms; approve nothing.")] = False,
    digest: Annotated[
        str | None,
        typer.Option("--hash", help="Beginning of the study's hash; any other study is refused."),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(help="Fingerprint of the coordinator; a kit signed with another key is refused."),
    ] = None,
    card: Annotated[
        list[Path] | None,
        typer.Option(help="A card that another site sent you; another key in the study is refused."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --show, print JSON.")] = False,
) -> None:
    """Show the terms of a study and approve exactly these.

    A changed study, or one that would exceed the limits of this site, is refused.
    On a terminal, the command asks for confirmation; otherwise it approves directly. The state of the scans
    is recorded, so that changes before the study starts are detected; then approve it again. Exit code 1 if
    the answer was no; nothing was changed.
    """
    from capedjica.privacy.wording import NOT_FROM_THE_AGGREGATOR
    from capedjica.site.approval import participation
    from capedjica.site.approval.admission import has_begun
    from capedjica.site.check import compare_cards, offer, read_card, show_offer, show_terms
    from capedjica.site.flare.kits import coordinator_of, received
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    if as_json and not show:
        raise InputError("--json is given without --show; it prints the terms and approves nothing")
    with received(home, study) as (given, keep):
        if digest is not None and (len(digest) < 8 or not given.hash.hex().startswith(digest.lower())):
            raise InputError(
                f"{study}: the study's hash is {given.hash.hex()}, --hash expected one that begins with "
                f"{digest!r} (8 digits or more); nothing was approved"
            )
        signer = coordinator_of(given) if study.suffix == ".zip" else None
        if coordinator is not None and _letters(coordinator) != _letters(signer or ""):
            raise InputError(
                f"{study}: --coordinator expected a kit signed with the key {coordinator!r}, got "
                f"{'an unsigned study.toml' if signer is None else repr(signer)}; nothing was "
                "approved"
            )
        same = compare_cards(given, [read_card(path) for path in card or ()])
        for name in (name for name, alike in same.items() if not alike):
            raise InputError(
                f"site {name} has another key in this study than on the card that it sent you; call the "
                "coordinator. Nothing was approved"
            )
        if as_json:
            more = {"coordinator_fingerprint": signer, "same_cards": sorted(same)}
            typer.echo(json.dumps(offer(home, given) | more, indent=2))
            return
        if show:
            for words in show_offer(home, given, Console(highlight=False))["refusals"]:
                typer.echo(f"\nThis site cannot approve it: {words}.")
            return
        participation.check_offer(home, given)
        show_terms(home, given, Console(highlight=False))
        if signer is not None:
            typer.echo(
                "\nThe coordinator's key is pinned: a new kit, or a notice that the study has ended, must be "
                "signed with it. Its fingerprint, to compare by phone or in person:\n  "
                f"{signer}"
            )
        typer.echo()
        if not yes and sys.stdin.isatty() and not typer.confirm("Approve?", default=False):
            typer.echo("Not approved; nothing was changed.")
            raise typer.Exit(1)
        # A new kit for a study that has started does not change what was approved.
        renewed = study.suffix == ".zip" and has_begun(home, given)
        if not renewed:
            with _looking(home) as tick:
                participation.approve(home, given, tick)
        keep()
    cap, unit = given.contract.cap(home.settings.name), given.contract.unit.named()
    cost = f" for {cap} for each {unit}." if given.contract.protects else f". {NOT_FROM_THE_AGGREGATOR}"
    typer.echo(f"Site {home.settings.name} approved '{given.content.title}'{cost}")
    if renewed:
        typer.echo("It has already started and continues as approved, with this kit.")
    elif not home.settings.policy.auto_approve:
        typer.echo(
            "The state of the data was recorded: if the data change before it starts, approve it again."
        )
    typer.echo(f"Hash of the study, to compare with the other sites:\n  {given.hash.hex()}")
    if study.suffix == ".zip":
        typer.echo(f"To connect to its server: capedjica site start {home.folder}")


def _letters(fingerprint: str) -> str:
    """Return a fingerprint as it is compared, without its spaces."""
    return "".join(fingerprint.split()).lower()


@app.command()
@of_a_site
def revoke(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="A study.toml, its folder, or its title or hash in the ledger."),
    ],
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Revoke without a prompt.")] = False,
) -> None:
    """Revoke the approval of a study permanently.

    Nothing more leaves this site for the study, not even a stored answer. During a run, this applies from the
    site's next message on. Past releases stay released and charged. The same study cannot be approved again.
    Exit code 1 if the answer was no; nothing was changed.
    """
    from capedjica.site.approval import revocation
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    approval = revocation.find_approval(home, study)
    for words in revocation.warn(approval):
        typer.echo(words)
    if not yes and sys.stdin.isatty() and not typer.confirm("Revoke?", default=False):
        typer.echo("Not revoked; nothing was changed.")
        raise typer.Exit(1)
    done = _by_the_agent(home, "revoke", study)
    if done is None:
        revocation.revoke(home, approval)
        done = list(revocation.explain(home, approval))
    for words in done:
        typer.echo(words)


@app.command("rotate-key")
@of_a_site
def rotate_key(
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Change the key without a prompt.")] = False,
) -> None:
    """Give this site a new key and keep its ledger.

    All past spending still counts.
    The command is refused while the site takes part in a study. Studies that name the old key cannot
    continue. If it is interrupted, run the same command again to complete it.
    """
    from capedjica.site import key_rotation
    from capedjica.site.check import read_card
    from capedjica.site.home import SiteHome
    from capedjica.tools.text import printable

    home = SiteHome.load(site)
    for title in key_rotation.bound_studies(home):
        typer.echo(
            f"'{printable(title)}' names the current key: unless it has finished, it cannot continue, and "
            "the coordinator must create a new study with the new card."
        )
    if not yes and sys.stdin.isatty() and not typer.confirm("Change the key?", default=False):
        typer.echo("Nothing was changed.")
        raise typer.Exit(1)
    changed = key_rotation.rotate_key(home)
    typer.echo(f"Site {home.settings.name} has a new key. The old key is kept as {changed.aside}.")
    typer.echo(
        f"New card for the coordinator, also saved as {home.card_path}:\n  {read_card(home.card_path)}"
    )
    typer.echo(f"New fingerprint, to compare by phone or in person:\n  {changed.new.fingerprint}")
    typer.echo(
        "Old fingerprint, for `revoked` in the other sites' site.toml if the key was stolen:\n  "
        f"{changed.old.fingerprint}"
    )


@app.command()
@of_a_site
def show(site: SiteArgument, as_json: JsonOption = False) -> None:
    """Show the card, the budget and the studies of a site.

    No scan is opened, and nothing is spent.
    """
    from capedjica.site.home import SiteHome
    from capedjica.site.overview import overview, overview_words
    from capedjica.tools.text import printable

    facts = overview(SiteHome.load(site))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for words in overview_words(facts):
        typer.echo(printable(words, exactly=True))


@app.command()
@of_a_site
def web(
    site: SiteArgument,
    port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1, for a tunnel; by default a free one.")
    ] = None,
    idle: Annotated[float, typer.Option(help="Minutes without use until the pages are locked.")] = 15.0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Serve local web pages for this site.

    Only on the loopback interface. A folder without a site.toml shows a form that creates a site. The pages
    run the same commands as this program, and name each of them.
    """
    need_web()
    from capedjica.web.server import serve
    from capedjica.web.site_pages import SitePages

    serve(SitePages(site.absolute()), port=port, idle_minutes=idle, browser=not no_browser)


@app.command()
@of_a_site
def check(site: SiteArgument, study: StudyOption = None, as_json: JsonOption = False) -> None:
    """Check the data, settings and limits of this site.

    With --study, also show what would leave the site and what it would cost. Every scan is read; nothing is
    spent. Exit code 2 if this site cannot take part.
    """
    from capedjica.site.check import next_words, not_shown, show_site, site_report
    from capedjica.tools.toml import listed

    home, given = _load(site, study)
    with _looking(home) as tick:
        facts = site_report(home, given, tick)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show_site(facts, Console(highlight=False))
    what = "any study" if given is None else f"'{given.content.title}'"
    if not as_json:
        ready = "" if facts["obstacles"] else f"Site {home.settings.name} is ready for {what}.\n"
        typer.echo(f"\n{ready}{next_words(home, given, facts)}")
    if facts["obstacles"]:
        found = facts["obstacles"] if as_json else not_shown(facts)
        raise InputError(listed(f"site {home.settings.name} is not ready for {what}", found))


def look_at(kit: Path, site: Path) -> None:
    """Read all data as the study of a kit reads them; raise InputError if the site cannot take part."""
    from capedjica.site.approval.admission import Scans, why_not
    from capedjica.site.flare.kits import received
    from capedjica.site.home import SiteHome
    from capedjica.tools.toml import listed

    home = SiteHome.load(site)
    with received(home, kit) as (given, _), _looking(home) as tick:
        scans = Scans(home, given, tick=tick)
        found = [reason.words for reason in why_not(home, given, scans, approving=True)]
        if found:
            title = f"site {home.settings.name} is not ready for '{given.content.title}'"
            raise InputError(listed(title, found))
        typer.echo(f"Checked: {scans.n_usable:,} of {len(scans.roll.people):,} usable.")


@app.command()
@of_a_site
def enrol(
    site: SiteArgument,
    study: StudyOption = None,
    participant_label: Annotated[
        list[str] | None,
        typer.Option(help="Participant to consider, with or without 'sub-'; may be repeated."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task of BIDS derivatives.")] = None,
    space: Annotated[str | None, typer.Option(help="Template space of BIDS derivatives.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace an earlier enrolment.")] = False,
) -> None:
    """Fix the list of participants with usable data.

    The data of every participant are read, and participants with unusable data are excluded. The list stays
    at the site, in enrolled.toml, with the reasons for exclusion; the number enrolled is public. With
    --study, the data are checked as that study will read them.
    """
    import msgspec

    from capedjica.site.approval.participation import affected
    from capedjica.site.participants.cohort import enrol
    from capedjica.site.participants.enrolment import read_enrolment
    from capedjica.tools.text import counted

    home, given = _load(site, study)
    chosen: dict[str, Any] = {"participants": tuple(participant_label or ()), "task": task, "space": space}
    data = msgspec.structs.replace(
        home.settings.data, **{key: value for key, value in chosen.items() if value}
    )
    before = read_enrolment(home)
    with _looking(home) as tick:
        enrolment = enrol(home, data, given, again=again, tick=tick)
    for one in enrolment.left_out:
        for reason in one.reasons:
            typer.echo(f"excluded: {reason}")
    n_enrolled = counted(len(enrolment.enrolled), "participant")
    typer.echo(f"Site {home.settings.name} enrolled {n_enrolled}: enrolled.toml.")
    typer.echo(f"Next: send the card, which states this number, to the coordinator: {home.card_path}")
    for words in affected(home, before, enrolment):
        typer.echo(words)


@app.command()
@of_a_site
def withdraw(
    person: Annotated[
        str, typer.Argument(metavar="PERSON", help="Name of the participant, with or without 'sub-'.")
    ],
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Withdraw without a prompt.")] = False,
) -> None:
    """Withdraw the consent of a participant.

    From now on, no study reads the participant's data, and the participant is not enrolled again. During a
    run, this applies from the next release on. Past releases cannot be recalled.
    """
    from capedjica.site.consent.withdrawal import explain, known_as, withdraw
    from capedjica.site.home import SiteHome
    from capedjica.tools.text import printable

    home = SiteHome.load(site)
    if not yes and sys.stdin.isatty():
        name = printable(known_as(home, person))
        typer.echo(f"From now on, no study reads the data of {name}, who is not enrolled again.")
        if not typer.confirm(f"Withdraw the consent of {name} permanently?", default=False):
            typer.echo("Not withdrawn; nothing was changed.")
            raise typer.Exit(1)
    done = _by_the_agent(home, "withdraw", person)
    for words in explain(home, withdraw(home, person)) if done is None else done:
        typer.echo(words)


def _by_the_agent(home: SiteHome, what: Literal["revoke", "withdraw"], subject: str) -> list[str] | None:
    """Send a command to the running agent, the only writer of the ledger; None if no agent is running."""
    from capedjica.site.flare.kits import installed

    if not installed(home):
        return None
    from capedjica.site.agent.owner_commands import Command, carry_out

    return carry_out(home, Command(what, subject))


@app.command()
@of_a_site
def purge(
    site: SiteArgument,
    results: Annotated[bool, typer.Option("--results", help="Also remove the individual results.")] = False,
) -> None:
    """Remove cached time series extracted from scans.

    Keys, ledger and enrolment stay.
    """
    from capedjica.data.cache import SeriesCache
    from capedjica.site.home import SiteHome
    from capedjica.site.results.individual import purge_results
    from capedjica.tools.text import counted

    home = SiteHome.load(site)
    removed = SeriesCache(home.cache_path).purge()
    typer.echo(f"Removed {removed} extracted series from {home.cache_path}.")
    if results:
        of = counted(purge_results(home), "study", "studies")
        typer.echo(f"Removed the results of {of} from {home.results_path}.")


@app.command()
@of_a_site
def results(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its unpacked results.zip.")],
    site: SiteArgument,
) -> None:
    """Write the individual results of each participant.

    These are time courses, their spectra, functional network connectivity and individual maps, in the site's
    own folder, accessible only to its owner; they stay at the site. After an interruption, existing results
    are kept.
    """
    from capedjica.site.home import SiteHome
    from capedjica.site.results.individual import reliability_of, write_local_results

    home = SiteHome.load(site)
    with _looking(home) as tick:
        written = write_local_results(run, home, tick)
    if banner := reliability_of(run).banner:
        typer.echo(banner)
    kept = f" ({written.kept} of them already existed)" if written.kept else ""
    typer.echo(f"Results of {written.written + written.kept} participants{kept}: {written.folder}")
    if written.unusable:
        typer.echo(f"No results, as the scans are unusable: {', '.join(written.unusable)}")
    typer.echo("These are individual results: they must not leave this site.")


@app.command()
@of_a_site
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its unpacked results.zip.")],
    site: SiteArgument,
) -> None:
    """Write a local report on the participants of this site.

    An HTML page with connectivity, spectra, time courses and participants of unusual data quality, from the
    files of `capedjica site results`; missing results are written first. The page stays at the site.
    """
    from capedjica.site.home import SiteHome
    from capedjica.site.results.individual import reliability_of
    from capedjica.site.results.page import write_local_report

    home = SiteHome.load(site)
    with _looking(home) as tick:
        path = write_local_report(run, home, tick)
    if banner := reliability_of(run).banner:
        typer.echo(banner)
    typer.echo(f"Wrote {path}: open it in a browser.")
    typer.echo("It shows individual results: it must not leave this site.")


def _load(site: Path, study: Path | None) -> tuple[SiteHome, Study | None]:
    from capedjica.site.home import SiteHome
    from capedjica.study.study_file import Study

    return SiteHome.load(site), None if study is None else Study.load(study)


@contextmanager
def _looking(home: SiteHome) -> Iterator[Callable[[], None]]:
    """Show a progress bar that advances with every participant."""
    from capedjica.site.participants.cohort import call_roll

    console = Console(stderr=True, highlight=False)
    with counting("reading data", console) as progress:
        total = None
        if not progress.disable:
            with suppress(CapedjicaError):
                total = len(call_roll(home).people)
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


@app.command()
@of_a_site
def outbox(site: SiteArgument, as_json: JsonOption = False) -> None:
    """List every release that ever left this site."""
    from capedjica.site.home import SiteHome
    from capedjica.site.ledger_view import NOT_LISTED, messages_sent
    from capedjica.tools.terminal import show_paragraph

    home = SiteHome.load(site)
    rows: list[dict[str, Any]] = []
    if home.has_ledger:
        with home.open_ledger() as ledger:
            rows = messages_sent(ledger)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(row["text"])
    nothing = "Nothing computed from participants' data has ever left this site."
    typer.echo(f"{len(rows)} messages in total." if rows else nothing)
    numbers = sum(row["numbers"] for row in rows)
    size = f" (up to {8 * numbers / 1000:,.1f} kB in total)" if rows else ""
    show_paragraph(NOT_LISTED.format(size=size), Console(highlight=False))
