"""A client of the web pages that speaks HTTP itself, so that every header can be wrong."""

from __future__ import annotations

import asyncio
import html
import http.client
import re
import secrets
import socket
import threading
import time
from urllib.parse import urlencode, urlsplit

import uvicorn

from capedjica.web.application import make_application
from capedjica.web.security import COOKIE, Guard
from capedjica.web.server import configuration

PATIENCE = 240


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Served:
    """Pages served by a real server on a free port; use it as a context."""

    def __init__(self, pages, idle=900.0):
        self.pages, self.clock, self.addresses = pages, Clock(), []
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(64)
        self.port = self._socket.getsockname()[1]
        self.guard = Guard(self.port, idle, self.addresses.append, self.clock)
        self.guard.renew()
        self._server = uvicorn.Server(configuration(make_application(pages, self.guard)))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
        self.pages.close()


class Answer:
    def __init__(self, response, path):
        self.status, self.headers, self.path = response.status, response.headers, path
        self.body = response.read()

    @property
    def html(self):
        return self.body.decode("utf-8", "replace")

    @property
    def words(self):
        """What is read on the page."""
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.html)))

    def hidden(self, name):
        return re.search(rf'name="{name}" value="([^"]*)"', self.html)[1]


class Client:
    """One browser, as far as it matters."""

    def __init__(self, served):
        self.served, self.base, self.cookie = served, served.guard.base, None
        self.origin = f"http://127.0.0.1:{served.port}"

    def open(self):
        """Use the latest opening address."""
        answer = self.ask("GET", urlsplit(self.served.addresses[-1])[2:4], whole=True)
        given = re.search(rf"{COOKIE}=([^;]+)", answer.headers.get("set-cookie", ""))
        self.cookie = given and given[1]
        return answer

    def ask(self, method, path, body=None, headers=None, whole=False):
        path = "?".join(part for part in path if part) if isinstance(path, tuple) else path
        given = {"Host": f"127.0.0.1:{self.served.port}"} | (headers or {})
        if self.cookie:
            given.setdefault("Cookie", f"{COOKIE}={self.cookie}")
        line = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=PATIENCE)
        try:
            line.putrequest(method, path if whole else self.base + path, skip_host=True)
            for name, value in given.items():
                if value is not None:
                    line.putheader(name, value)
            if body is not None:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            return Answer(line.getresponse(), path)
        finally:
            line.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, fields, files=(), headers=None):
        """Send a form and follow where it leads, until the action is done."""
        given = {"Origin": self.origin} | (headers or {})
        body, kind = encode(fields, files)
        answer = self.ask("POST", path, body, {"Content-Type": kind} | given)
        end = time.monotonic() + PATIENCE
        while answer.status == 303 or "data-reload" in answer.html:
            assert time.monotonic() < end
            place = answer.headers.get("location", self.base + answer.path).removeprefix(self.base)
            time.sleep(0.1 if answer.status == 200 else 0)
            answer = self.get(place)
        return answer

    def act(self, page, action, /, files=(), **fields):
        """Open a page, fill in its form and send it."""
        shown = self.get(page)
        own = {"form_token": shown.hidden("form_token"), "seen": shown.hidden("seen")}
        return self.post(action, own | fields, files)


def encode(fields, files):
    if not files:
        return urlencode(fields).encode(), "application/x-www-form-urlencoded"
    mark = secrets.token_hex(16)
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for name, content in files:
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    return b"".join([*parts, f"--{mark}--\r\n".encode()]), f"multipart/form-data; boundary={mark}"
