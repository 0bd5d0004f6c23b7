"""``capedjica study provision``: kits for sites on machines of their own."""

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
        str | None, typer.Option(help="The name by which sites reach the machine of the aggregator.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Its port, the only one that sites must reach; by default 8002.")
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(help="The sites' folders, where they are on this machine: each is asked first."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Make new kits for a sealed study: certificates end, or a kit was lost or stolen."
        ),
    ] = False,
) -> None:
    """Seal a study, and make a kit for every site.

    A sealed study can be changed no more; a kit is what a site connects with. With --sites, those sites are
    asked whether they could approve it, by their numbers of people and their limits.
    With --again the study stays the same, and all earlier kits become useless: every site needs its new one.
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
        typer.echo("All earlier kits are useless now: every site approves its new one.")
    elif host is None:
        raise InputError("--host is missing: the name by which sites reach the machine of the aggregator")
    else:
        federation = provisioning.provision(given, host, port or provisioning.DEFAULT_PORT)
    host, port = federation.seal.host, federation.seal.port
    typer.echo(
        f"Sealed '{given.content.title}'. Its hash, to be compared with the sites:\n  {given.hash.hex()}"
    )
    typer.echo("A kit for each site, to be handed over so that nobody else gets it:")
    for name in given.contract.roster.names:
        typer.echo(f"  {federation.site_kits / f'{name}.zip'}")
    typer.echo(
        "Your own key, by which sites know your kits, to be compared by voice:\n  "
        f"{federation.key().fingerprint}"
    )
    typer.echo(
        f"Keep to yourself: {federation.root_path} and {federation.key_path}. Open to the sites: port {port} "
        f"of {host}."
    )
    typer.echo("Next, at each site: capedjica site approve NAME.zip; capedjica site start")
    typer.echo(f"Next, here: capedjica run {shlex.quote(str(study))} --engine flare")
