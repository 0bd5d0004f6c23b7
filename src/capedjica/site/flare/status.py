"""How a site's studies go, for its data manager."""

from __future__ import annotations

from typing import Any

import psutil

from capedjica.errors import CapedjicaError
from capedjica.flare import processes
from capedjica.flare.certificates import certificate_warning
from capedjica.site.approval.participation import spent_on
from capedjica.site.flare.kits import Kit, installed
from capedjica.site.home import SiteHome
from capedjica.site.ledger_view import row


def look(home: SiteHome, study: str | None = None) -> list[dict[str, Any]]:
    """Return of each study, or of those whose hash begins so, whether this site runs and what it spent."""
    chosen = [kit for kit in installed(home) if kit.label.study.startswith(study or "")]
    return [_facts(home, kit) for kit in chosen]


def _facts(home: SiteHome, kit: Kit) -> dict[str, Any]:
    try:
        server, title, spent = kit.server(), kit.study().content.title, _spent(home, kit)
    except CapedjicaError as error:
        return {"study": kit.label.study, "title": "", "state": "unusable", "words": str(error)}
    state, words = _state(kit, server)
    warning = certificate_warning(kit.path)
    return {
        "study": kit.label.study,
        "title": title,
        "state": state,
        "words": words,
        "server": server,
        "warnings": [] if warning is None else [warning],
    } | spent


def _state(kit: Kit, server: str) -> tuple[str, str]:
    """Return how the site stands, in one word for programs and in a sentence for people."""
    supervisor = processes.running(kit.path)
    if supervisor is None:
        return "stopped", "not running; to connect: capedjica site start"
    if not (members := processes.family(kit.path)):
        words = (
            f"process {supervisor} is starting it; if it does not stay, {processes.log(kit.path)} says why"
        )
        return "starting", words
    if _reaches(members, int(server.rpartition(":")[2])):
        return "connected", f"connected, process {supervisor}"
    return "connecting", f"not connected yet, process {supervisor} goes on trying: the server does not answer"


def _reaches(members: list[psutil.Process], port: int) -> bool:
    """Whether one of these processes has a connection to the server's port."""
    for process in members:
        try:
            lines = process.net_connections(kind="tcp")
        except psutil.Error:
            continue
        if any(
            line.raddr and line.raddr.port == port and line.status == psutil.CONN_ESTABLISHED
            for line in lines
        ):
            return True
    return False


def _spent(home: SiteHome, kit: Kit) -> dict[str, Any]:
    known = spent_on(home, kit.study())
    return {"spent": None if known is None else row(kit.label.study, known)}
