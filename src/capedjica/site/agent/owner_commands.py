"""Commands of the site's owner to a running agent: status, revoke, withdraw.

While the agent runs, it alone writes to the ledger. The caller proves that it can read a file of the agent
that the carrier cannot read: within one user account, the system alone could not distinguish the two.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from capedjica.errors import CapedjicaError, InputError
from capedjica.flare.link import (
    VERSION,
    Caller,
    Channel,
    Greeting,
    LinkError,
    Listener,
    answer_calls,
    connect,
    owners,
    socket_path,
)
from capedjica.site.approval import revocation
from capedjica.site.consent import withdrawal
from capedjica.site.flare.kits import Kit, installed
from capedjica.site.home import SiteHome
from capedjica.tools.atomic_files import write_private

ROLE: Final = "owner"
_TOKEN: Final = "owner.token"  # noqa: S105 (a name)
_LIMIT: Final = 1 << 20
# A withdrawal may have to remove many files.
_SECONDS: Final = 600.0


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command and the study or participant it applies to."""

    what: Literal["status", "revoke", "withdraw"]
    subject: str = ""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a command as lines of text, or an error with the exit code of the command."""

    lines: tuple[str, ...] = ()
    error: str = ""
    exit_code: int = 0


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The status of an agent.

    Attributes
    ----------
    network : str
        Description of what keeps the agent from the network.
    carrier : str
        Description of what keeps the carrier from the site's files.
    connected : bool
        Whether a job of the carrier is connected to the agent.
    asked : float or None
        Seconds since the last question.
    """

    network: str
    carrier: str
    connected: bool
    asked: float | None


class OwnersDesk:
    """The agent's end: listens for the owner's commands.

    ``report`` is called with one line about each refused caller. ``place`` is the agent's folder of the
    study, which also holds the token.
    """

    def __init__(
        self, home: SiteHome, place: Path, standing: Callable[[], Standing], report: Callable[[str], None]
    ) -> None:
        self._home, self._standing = home, standing
        self._token, self._one_at_a_time = secrets.token_bytes(32), threading.Lock()
        path = socket_path(place, ROLE)
        self._listener = Listener(path, _LIMIT, owners(), self._admit, self._serve, report)
        # Written after the socket is bound, so that the token of another agent is not overwritten.
        write_private(place / _TOKEN, self._token)

    def _admit(self, greeting: Greeting) -> str:
        # defence: the-owners-token
        known = hmac.compare_digest(greeting.token, self._token)
        return "" if known and greeting.role == ROLE else "this socket is for the site's owner alone"

    def _serve(self, channel: Channel, greeting: Greeting) -> None:
        with suppress(LinkError):
            answer_calls(channel, self._answer)

    def _answer(self, data: bytes) -> bytes:
        try:
            with self._one_at_a_time:
                outcome = self._do(msgspec.msgpack.decode(data, type=Command))
        except CapedjicaError as error:
            outcome = Outcome(error=str(error), exit_code=error.exit_code)
        except Exception as error:
            outcome = Outcome(error=f"an unexpected {type(error).__name__} in the agent", exit_code=1)
        return msgspec.msgpack.encode(outcome)

    def _do(self, command: Command) -> Outcome:
        if command.what == "status":
            return Outcome((msgspec.json.encode(self._standing()).decode(),))
        if command.what == "revoke":
            approval = revocation.find_approval(self._home, command.subject)
            revocation.revoke(self._home, approval)
            return Outcome(tuple(revocation.explain(self._home, approval)))
        done = withdrawal.withdraw(self._home, command.subject)
        return Outcome(tuple(withdrawal.explain(self._home, done)))

    def close(self) -> None:
        """Accept no more commands."""
        self._listener.close()


def ask(kit: Kit, command: Command) -> Outcome | None:
    """Send a command to the agent of a kit; return None if no agent is running."""
    try:
        token = (kit.path / _TOKEN).read_bytes()
        caller = Caller(connect(socket_path(kit.path, ROLE), Greeting(VERSION, ROLE, token), _LIMIT))
    except (OSError, CapedjicaError):
        return None
    try:
        return msgspec.msgpack.decode(caller.call(msgspec.msgpack.encode(command), _SECONDS), type=Outcome)
    except (ValueError, LinkError) as error:
        raise InputError(f"the agent of study '{kit.label.study[:16]}' did not answer: {error}") from None
    finally:
        caller.close()


def carry_out(home: SiteHome, command: Command) -> list[str] | None:
    """Send a command to a running agent of a site; return None if the caller must execute it directly."""
    for kit in installed(home):
        outcome = ask(kit, command)
        if outcome is not None:
            if outcome.error:
                error = CapedjicaError(outcome.error)
                error.exit_code = outcome.exit_code
                raise error
            return list(outcome.lines)
    return None


def standing(kit: Kit) -> Standing | None:
    """Return the status of the agent of a kit; None if no agent runs or answers."""
    with suppress(CapedjicaError):
        outcome = ask(kit, Command("status"))
        if outcome is not None and not outcome.error:
            return msgspec.json.decode(outcome.lines[0], type=Standing)
    return None
