"""What `--help` shows on a terminal of 80 columns."""

import re
import sys

import pytest
import typer

from capedjica.cli import app, main

GROUPS = ["", "site", "sites", "study", "ledger"]


def shown(group, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setattr(sys, "argv", ["capedjica", *group.split(), "--help"])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("group", GROUPS)
def test_every_summary_fits_into_one_line_of_eighty_columns(group, monkeypatch, capsys):
    text = shown(group, monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("COMMAND [ARGS]...", "")
    command = typer.main.get_command(app)
    for name in group.split():
        command = command.commands[name]
    for name in command.commands:
        assert len(re.findall(rf"^  {name} +\S", text, re.MULTILINE)) == 1, name


def test_commands_are_grouped_by_who_needs_them(monkeypatch, capsys):
    text = shown("", monkeypatch, capsys)
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings[1:] == [
        "Trials and demonstrations",
        "Coordinator",
        "Data manager of a hospital",
        "All sites on one machine",
    ]
    under = {
        heading: re.findall(r"^  (\S+)  +\S", part, re.MULTILINE)
        for heading, part in zip(
            headings[1:], re.split(r"^\S.*:$", text, flags=re.MULTILINE)[2:], strict=True
        )
    }
    assert under == {
        "Trials and demonstrations": ["demo", "federated-demo", "simulate"],
        "Coordinator": ["plan", "study", "run", "status", "report", "bids-export", "compare"],
        "Data manager of a hospital": ["site", "ledger"],
        "All sites on one machine": ["sites"],
    }
    own = re.findall(r"^(\S.*):$", shown("site", monkeypatch, capsys), re.MULTILINE)
    assert "Site and participants" in own


@pytest.mark.parametrize(("group", "others"), [("site", {"init", "carrier"}), ("ledger", set())])
def test_every_command_of_a_site_takes_it_by_position_or_by_option(group, others):
    """All but the one that makes a site, and the program that has no access to one."""
    commands = typer.main.get_command(app).commands[group].commands
    taken = {
        name
        for name, command in commands.items()
        if {("--site",), ("site",)} <= {tuple(one.opts) for one in command.params}
    }
    assert set(commands) - taken == others
