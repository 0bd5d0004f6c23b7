"""Status of a site's studies for its data manager."""

from __future__ import annotations

from typing import Any, Final

import psutil

from capedjica.errors import CapedjicaError
from capedjica.flare import processes
from capedjica.flare.certificates import certificate_warning
from capedjica.site.agent.owner_commands import Standing, standing
from capedjica.site.approval.admission import spent_on
from capedjica.site.flare.kits import OVER, Kit, installed
from capedjica.site.flare.starting import AGENT, CARRIER
from capedjica.site.home import SiteHome
from capedjica.site.ledger_view import row

# Time limits for an agent to start, and for a carrier to reach a running server.
_AGENT_SECONDS: Final = 120.0
_SERVER_SECONDS: Final = 15.0


def look(home: SiteHome, study: str | None = None) -> list[dict[str, Any]]:
    """Return connection state and spending for each study whose hash starts with ``study``."""
    return [_facts(home, kit) for kit in installed(home, study or "")]


def _facts(home: SiteHome, kit: Kit) -> dict[str, Any]:
    try:
        server, study = kit.server(), kit.study()
        spent = spent_on(home, study)
    except CapedjicaError as error:
        return {"study": kit.label.study, "title": "", "state": "unusable", "words": str(error)}
    agent = standing(kit)
    state, words = _state(kit, agent)
    warning = certificate_warning(kit.workspace)
    return {
        "study": kit.label.study,
        "title": study.content.title,
        "state": state,
        "words": words,
        "server": server,
        "agent": "not running" if agent is None else f"{agent.network}; {_asked_words(agent)}",
        "carrier": "not running" if agent is None else f"confined by {agent.carrier}",
        "warnings": [] if warning is None else [warning],
        "spent": None if spent is None else row(kit.label.study, spent),
    }


def _asked_words(agent: Standing) -> str:
    return "no question yet" if agent.asked is None else f"last question {agent.asked:.0f} s ago"


def _state(kit: Kit, agent: Standing | None) -> tuple[str, str]:
    """Return the connection state as one word for programs and as a sentence."""
    over, supervisor = kit.path / OVER, processes.running(kit.path)
    ended = f"the coordinator ended the study on {over.read_text().strip()}" if over.exists() else ""
    if supervisor is None and agent is not None:
        # The two programs were started separately, the carrier as another user.
        if agent.connected:
            return "connected", "connected, through a carrier of another user"
        words = "the agent is running, but no job of a carrier is connected to it, as is normal between runs"
        return "connecting", words
    if supervisor is None:
        return "stopped", f"not running; {ended or 'to connect: capedjica site start'}"
    members = processes.family(kit.path, CARRIER)
    if agent is None or not members:
        words = f"starting, process {supervisor}; if it stops again, see the logs in {kit.path}"
        return "starting", words
    if _reaches(members, kit.label.port):
        return "connected", f"connected, process {supervisor}"
    if ended:
        return "over", f"{ended}; to stop it here: capedjica site stop"
    return "connecting", f"not connected yet: the server does not answer; process {supervisor} keeps trying"


def _reaches(members: list[psutil.Process], port: int) -> bool:
    """Return whether one of these processes is connected to the server's port."""
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


def await_connection(kit: Kit) -> str:
    """Wait until a started site is connected; return one line about the connection.

    Raises
    ------
    CapedjicaError
        If the site could not be started.
    """

    def ended() -> bool:
        return processes.running(kit.path) is None

    def connected() -> bool:
        return _state(kit, standing(kit))[0] == "connected"

    if not processes.wait_until(lambda: ended() or standing(kit) is not None, _AGENT_SECONDS):
        raise _failed(kit, f"its agent did not start within {_AGENT_SECONDS:.0f} s")
    processes.wait_until(lambda: ended() or connected(), _SERVER_SECONDS)
    if ended():
        raise _failed(kit)
    if connected():
        return f"Connected to the server at {kit.server()}."
    return (
        f"Not connected yet: the server at {kit.server()} does not answer. The site keeps trying and "
        "connects when the coordinator runs the study."
    )


def _failed(kit: Kit, reason: str = "") -> CapedjicaError:
    """Stop a site that failed to start, and return the reason or the last log line as an error."""
    processes.stop(kit.path)
    logs = [processes.log(kit.path, name) for name in (AGENT, CARRIER)]
    latest = max(logs, key=lambda log: log.stat().st_mtime if log.exists() else 0.0)
    words = reason or processes.refusal(latest) or f"see the logs in {kit.path}"
    error = CapedjicaError(f"the site could not be started: {words}. Nothing was spent")
    error.exit_code = 2
    return error
