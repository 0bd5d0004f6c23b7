"""How a site's studies go, for its data manager."""

from __future__ import annotations

from typing import Any, Final

import psutil

from capedjica.errors import CapedjicaError
from capedjica.flare import processes
from capedjica.flare.certificates import certificate_warning
from capedjica.site.agent.owner import Standing, standing
from capedjica.site.approval.admission import spent_on
from capedjica.site.flare.kits import OVER, Kit, installed
from capedjica.site.flare.starting import CARRIER
from capedjica.site.home import SiteHome
from capedjica.site.ledger_view import row

# How long an agent may take to begin, and a carrier to reach a server that is there.
_AGENT_SECONDS: Final = 120.0
_SERVER_SECONDS: Final = 15.0


def look(home: SiteHome, study: str | None = None) -> list[dict[str, Any]]:
    """Return of each study, or of those whose hash begins so, whether this site runs and what it spent."""
    chosen = [kit for kit in installed(home) if kit.label.study.startswith(study or "")]
    return [_facts(home, kit) for kit in chosen]


def _facts(home: SiteHome, kit: Kit) -> dict[str, Any]:
    try:
        server, title, spent = kit.server(), kit.study().content.title, _spent(home, kit)
    except CapedjicaError as error:
        return {"study": kit.label.study, "title": "", "state": "unusable", "words": str(error)}
    agent = standing(kit)
    state, words = _state(kit, agent)
    warning = certificate_warning(kit.workspace)
    return {
        "study": kit.label.study,
        "title": title,
        "state": state,
        "words": words,
        "server": server,
        "agent": _agent_words(agent),
        "carrier": "not running" if agent is None else f"confined by {agent.carrier}",
        "warnings": [] if warning is None else [warning],
    } | spent


def _agent_words(agent: Standing | None) -> str:
    if agent is None:
        return "not running"
    asked = "no question yet" if agent.asked is None else f"last question {agent.asked:.0f} s ago"
    return f"{agent.network}; {asked}"


def _state(kit: Kit, agent: Standing | None) -> tuple[str, str]:
    """Return how the site stands, in one word for programs and in a sentence for people."""
    over = kit.path / OVER
    supervisor = processes.running(kit.path)
    if supervisor is None and agent is not None:
        return _state_of_roles(agent)
    if supervisor is None:
        ended = f"; the coordinator ended the study on {over.read_text().strip()}" if over.exists() else ""
        return "stopped", f"not running{ended or '; to connect: capedjica site start'}"
    members = processes.family(kit.path, CARRIER)
    if agent is None or not members:
        words = f"process {supervisor} is starting it; if it does not stay, {kit.path} has logs that say why"
        return "starting", words
    if _reaches(members, kit.label.port):
        return "connected", f"connected, process {supervisor}"
    if over.exists():
        ended = over.read_text().strip()
        return "over", f"the coordinator ended the study on {ended}; to stop it here: capedjica site stop"
    return "connecting", f"not connected yet, process {supervisor} goes on trying: the server does not answer"


def _state_of_roles(agent: Standing) -> tuple[str, str]:
    """Return how a site stands whose two programs are started apart: the carrier's is another user's."""
    if agent.connected:
        return "connected", "connected, by a carrier of another user"
    return (
        "connecting",
        "the agent runs, and no job of a carrier is connected to it: between runs there is none",
    )


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


def await_connection(kit: Kit) -> str:
    """Wait until a site that was started is connected; return in one line that it is, or why not.

    Raises
    ------
    CapedjicaError
        If it does not run at all.
    """

    def ended() -> bool:
        return processes.running(kit.path) is None

    if not processes.wait_until(lambda: ended() or standing(kit) is not None, _AGENT_SECONDS):
        raise _failed(kit, f"its agent did not begin within {_AGENT_SECONDS:.0f} s")
    if ended():
        raise _failed(kit)
    processes.wait_until(lambda: ended() or _state(kit, standing(kit))[0] == "connected", _SERVER_SECONDS)
    if ended():
        raise _failed(kit)
    state, _ = _state(kit, standing(kit))
    if state == "connected":
        return f"Connected to the server at {kit.server()}."
    return (
        f"Not connected yet: the server at {kit.server()} does not answer. It goes on trying, and connects "
        "when the coordinator runs the study."
    )


def _failed(kit: Kit, reason: str = "") -> CapedjicaError:
    """Return why it does not run, or the last words of the program that would not; nothing of it is left."""
    processes.stop(kit.path)
    logs = sorted((processes.log(kit.path, name) for name in ("agent", CARRIER)), key=_changed)
    words = reason or processes.refusal(logs[-1]) or f"the logs in {kit.path} say why"
    error = CapedjicaError(f"the site could not be started: {words}. Nothing was spent")
    error.exit_code = 2
    return error


def _changed(log: Any) -> float:
    return float(log.stat().st_mtime) if log.exists() else 0.0
