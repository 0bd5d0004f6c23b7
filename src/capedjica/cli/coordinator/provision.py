"""``capedjica study provision``: kits for sites on their own machines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from capedjica.cli.options import need_flare
from capedjica.errors import InputError


def provision(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    host: Annotated[
        str | None, typer.Option(help="Host name or address at which sites reach the aggregator.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Its port, the only one that sites must reach; by default 8002.")
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(help="Folder of the sites' folders, if on this machine; they are checked first."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="New kits for a sealed study, if earlier ones expired, leaked or were lost."
        ),
    ] = False,
) -> None:
    """Seal a study and create a kit for every site.

    A sealed study can no longer be changed. Each site connects with its kit. With --sites, the command first
    checks whether those sites could approve the study, given their numbers of participants and limits.
    With --again, the study is unchanged and all earlier kits stop working: every site needs its new kit.
    """
    need_flare()
    from capedjica.coordinator.flare import provisioning
    from capedjica.study.study_file import Study

    given = Study.load(study)
    if sites is not None:
        from capedjica.one_machine.local_run import check_before_sealing

        check_before_sealing(given, sites)
    if again:
        federation = provisioning.provision_again(given, host, port)
        typer.echo("All earlier kits have stopped working: every site must approve its new kit.")
    elif host is None:
        raise InputError("--host is missing; give the host name or address of the aggregator's machine")
    else:
        federation = provisioning.provision(given, host, port or provisioning.DEFAULT_PORT)
    host, port = federation.seal.host, federation.seal.port
    typer.echo(
        f"Sealed '{given.content.title}'. Its hash, to be compared with the sites:\n  {given.hash.hex()}"
    )
    typer.echo("Kits of the sites, each to be given to its site only, by a secure channel:")
    for name in given.contract.roster.names:
        typer.echo(f"  {federation.site_kits / f'{name}.zip'}")
    typer.echo(
        "Fingerprint of your key, which signs the kits; sites compare it by phone or in person:\n  "
        f"{federation.key().fingerprint}"
    )
    typer.echo(
        f"Keep secret: {federation.root_path} and {federation.key_path}. Port {port} of {host} must be open "
        "to the sites."
    )
    typer.echo("Next, at each site: capedjica site join NAME.zip SITE")
    typer.echo(f"Next, here: capedjica run {shlex.quote(str(study))} --engine flare")
