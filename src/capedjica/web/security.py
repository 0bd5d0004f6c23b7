"""Access control of the local web pages.

A one-time token in the opening address is exchanged for a cookie. Every request is checked for its host,
every action for its origin and a token of the session. Idle sessions are locked. The cookie is valid below
one random path only: browsers send cookies of 127.0.0.1 to every port of the machine, and other programs'
pages must not receive it.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

COOKIE: Final = "capedjica"
# Wrong tokens until the address is replaced by a new one.
_MOST_GUESSES: Final = 5
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A report is one file with its style and scripts inside. In a sandbox it has no origin, so that nothing in it
# can act on the pages around it.
REPORT_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # With "no-referrer" browsers would not state the origin of a form either.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass
class Session:
    """An open session: the value of its cookie, and the token that its forms carry."""

    cookie: str
    form_token: str
    used: float


class Guard:
    """Decides which requests are served.

    Parameters
    ----------
    port : int
        Of the server; the only one that a Host header may name.
    idle_seconds : float
        Without a request for so long, the session is locked.
    announce : callable
        Told every new opening address.
    clock : callable
        The time in seconds.
    """

    def __init__(
        self,
        port: int,
        idle_seconds: float,
        announce: Callable[[str], None] = lambda address: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base = f"/{secrets.token_urlsafe(16)}"
        # Not localhost, which may lead to ::1 and to another user's server there.
        self.host = f"127.0.0.1:{port}"
        self._idle, self._announce, self._clock = idle_seconds, announce, clock
        self._session: Session | None = None
        self._token: str | None = None
        self._guesses = 0

    def renew(self) -> str:
        """Lock the pages; return a new opening address, valid once."""
        self._session, self._token, self._guesses = None, secrets.token_urlsafe(32), 0
        address = f"http://{self.host}{self.base}/open?token={self._token}"
        self._announce(address)
        return address

    def exchange(self, token: str) -> Session | None:
        """Return a session for the right token, once; None for any other."""
        # defence: web-one-time-token
        if self._token is None or not hmac.compare_digest(token.encode(), self._token.encode()):
            self._guesses += 1
            # defence: web-guesses-are-limited
            if self._token is not None and self._guesses >= _MOST_GUESSES:
                self.renew()
            return None
        self._token = None
        self._session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock())
        return self._session

    def known_host(self, headers: Headers) -> bool:
        """Whether a request names this server; a rebound name of a stranger's page is another one."""
        # defence: web-host-check
        return headers.getlist("host") == [self.host]

    def own_origin(self, headers: Headers) -> bool:
        """Whether a request that acts comes from one of these pages."""
        # defence: web-origin-check
        same = headers.get("origin") == f"http://{headers.get('host')}"
        return same and headers.get("sec-fetch-site", "same-origin") == "same-origin"

    @property
    def idle_seconds(self) -> float:
        """Seconds without a request after which the session is locked."""
        return self._idle

    def session_of(self, headers: Headers, *, touch: bool = True) -> Session | None:
        """Return the session of a request; cookies of the same name, set by another port, are ignored."""
        found = (self.session(cookie, touch=touch) for cookie in _cookies(headers))
        return next((session for session in found if session is not None), None)

    def session(self, cookie: str | None, *, touch: bool = True) -> Session | None:
        """Return the session of a cookie; None where there is none, or it was idle for too long."""
        if self._session is None:
            return None
        # defence: web-idle-lock
        if self._clock() - self._session.used > self._idle:
            self.renew()
            return None
        # defence: web-session-cookie
        if cookie is None or not hmac.compare_digest(cookie.encode(), self._session.cookie.encode()):
            return None
        if touch:
            self._session.used = self._clock()
        return self._session

    def own_form(self, session: Session, token: str) -> bool:
        """Whether a form was made for this session."""
        # defence: web-form-token
        return hmac.compare_digest(token.encode(), session.form_token.encode())


def _cookies(headers: Headers) -> list[str | None]:
    """Return the values of all cookies with the session's name; None where there are none."""
    pairs = [pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    return [value for name, _, value in pairs if name == COOKIE] or [None]
