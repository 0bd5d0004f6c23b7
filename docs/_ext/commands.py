"""The directive ``commands``: a reference of the command line, written from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

PROGRAM = "capedjica"


def every_command(command: Any, name: str = PROGRAM) -> Iterator[tuple[str, Any]]:
    """Yield every command and group below a command by its full name, in the order of the help."""
    yield name, command
    for below in _in_order(command):
        yield from every_command(command.commands[below], f"{name} {below}")


def _in_order(command: Any) -> list[str]:
    roles = getattr(command, "roles", {})
    named = [name for names in roles.values() for name in names]
    visible = [name for name, one in getattr(command, "commands", {}).items() if not one.hidden]
    return [*(name for name in named if name in visible), *(name for name in visible if name not in named)]


def reference() -> str:
    """Return the reference of all commands in Markdown."""
    from capedjica.cli import app

    return "\n\n".join(_section(name, command) for name, command in every_command(get_command(app)))


def _section(name: str, command: Any) -> str:
    """Return the section of a command: usage, description and parameters."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"{'#' * (1 + len(name.split()))} {name}", f"```text\n{usage}\n```", _paragraphs(command.help)]
    below = [f"- [`{name} {one}`](#{slug(f'{name} {one}')})" for one in _in_order(command)]
    parts += ["\n".join(below), *_parameters(command, context)]
    return "\n\n".join(part for part in parts if part)


def slug(name: str) -> str:
    """Return the anchor of the section of a command."""
    return name.replace(" ", "-")


def _paragraphs(text: str | None) -> str:
    r"""Return help as Markdown, with lines joined; what follows ``\f`` is for programmers."""
    paragraphs = (text or "").split("\f")[0].replace("\b", "").split("\n\n")
    return "\n\n".join(_escaped(" ".join(one.split())) for one in paragraphs)


def _escaped(text: str) -> str:
    """Return text without characters that have a meaning in Markdown, except in code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]|])", r"\\\1", part) for part in parts
    )


def _parameters(command: Any, context: Any) -> Iterator[str]:
    """Yield a table of arguments and a table of options, where there are any."""
    for kind, heading in (("argument", "argument"), ("option", "option")):
        found = [one for one in command.get_params(context) if one.param_type_name == kind]
        rows = [_row(one, context) for one in found if not getattr(one, "hidden", False)]
        if rows:
            yield "\n".join([f"| {heading} | meaning |", "|---|---|", *rows])


def _row(parameter: Any, context: Any) -> str:
    """Return the row of a parameter, as its help states it."""
    written, meaning = parameter.get_help_record(context) or (parameter.human_readable_name, "")
    return f"| `{' '.join(written.split())}` | {_escaped(' '.join((meaning or '').split()))} |".replace(
        "``", ""
    )


class Commands(SphinxDirective):
    """Insert the reference of all commands."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return self.parse_text_to_nodes(reference(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
