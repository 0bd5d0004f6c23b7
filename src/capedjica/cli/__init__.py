"""The command line interface: the ``capedjica`` command and its groups."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.console import Console

import capedjica
from capedjica.cli.coordinator.plan import plan
from capedjica.cli.coordinator.provision import provision
from capedjica.cli.coordinator.report import bids_export, compare, report
from capedjica.cli.coordinator.run import run
from capedjica.cli.coordinator.status import status
from capedjica.cli.coordinator.study import app as study_app
from capedjica.cli.options import by_role
from capedjica.cli.site import connection
from capedjica.cli.site.commands import app as site_app
from capedjica.cli.site.ledger import app as ledger_app
from capedjica.cli.trial.demo import demo, federated_demo
from capedjica.cli.trial.simulate import simulate
from capedjica.cli.trial.sites import app as sites_app
from capedjica.errors import CapedjicaError

INTERRUPTED: Final = 130

app = typer.Typer(
    name="capedjica",
    help="Joint analysis of brain scans across hospitals, with exact differential privacy. No scan leaves "
    "its hospital.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=by_role(
        Trials_and_demonstrations=("demo", "federated-demo", "simulate"),
        Coordinator=("plan", "study", "run", "status", "report", "bids-export", "compare"),
        Data_manager_of_a_hospital=("site", "ledger"),
        All_sites_on_one_machine=("sites",),
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(federated_demo)
app.command()(plan)
app.command()(simulate)
app.command()(run)
app.command()(status)
app.command()(report)
app.command()(bids_export)
app.command()(compare)
study_app.command()(provision)
site_app.command()(connection.join)
site_app.command()(connection.start)
site_app.command()(connection.status)
site_app.command()(connection.stop)
site_app.command()(connection.forget)
site_app.command()(connection.migrate)
site_app.command()(connection.agent)
site_app.command()(connection.carrier)
app.add_typer(ledger_app, name="ledger")
app.add_typer(site_app, name="site")
app.add_typer(sites_app, name="sites")
app.add_typer(study_app, name="study")


def main() -> None:
    """Run the command line; report a user error as one line on standard error and an exit code."""
    try:
        app()
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer turns an interruption into a silent exit.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except CapedjicaError as error:
        _say(str(error))
        sys.exit(error.exit_code)


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"capedjica: {text}")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capedjica {capedjica.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
