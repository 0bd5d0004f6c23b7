"""Command lines that are read, not run: every command and option in them must exist."""

import re
import shlex

import typer

from capedjica.cli import app

_COMMAND = typer.main.get_command(app)


def command_lines(text):
    """Every command line of capedjica in a piece of shell."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"(?<![\w./@-])capedjica [^;|&>\n`)#]+", joined)]


def parse(line, *, named=False):
    """Parse a command line as the program would, without running it; what cannot be parsed raises.

    ``named``: it may be a command's name alone, as in a sentence.
    """
    command, name, words = _COMMAND, "", shlex.split(line)[1:]
    if words[0] in {option for parameter in command.params for option in parameter.opts}:
        return
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    if words or not named:
        command.make_context(name, words)
