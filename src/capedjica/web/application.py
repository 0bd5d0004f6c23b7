"""The web application: checks of every request, pages from templates, actions as forms, live updates."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capedjica.errors import CapedjicaError, InputError
from capedjica.web.commands import Commands, Finished, Role, Running, shown
from capedjica.web.jobs import Desk, Job, StaleError
from capedjica.web.prose import parts
from capedjica.web.security import COOKIE, HEADERS, REPORT_POLICY, Guard, Session
from capedjica.web.uploads import MOST_BYTES, Uploads

Handler = Callable[[Request, FormData], Awaitable[Response]]
# How long an action keeps its request waiting; a longer one is followed on its own page.
_SHORT_SECONDS: Final = 1.5
_LIVE_SECONDS: Final = 5.0
_MOST_STREAMS: Final = 6
# In the address of a page that loads itself again.
WATCHING: Final = "watching"
_OPEN: Final = ("/open", "/style.css", "/web.js")


class BrokenError(InputError):
    """What the pages are about cannot be read: a damaged or locked folder."""


class Pages:
    """The pages of one role. Subclasses add routes, with :meth:`page` and :meth:`action`."""

    role: Role
    layout: str

    def __init__(self, commands: Commands | None = None) -> None:
        self._own_commands = commands is None
        self.commands = commands or Commands(self.role)
        self.desk = Desk(self.commands)
        self.uploads = Uploads()
        self.guard: Guard | None = None
        self._streams = 0

    def routes(self) -> list[Route]:
        """Return the routes of this role."""
        raise NotImplementedError

    def links(self) -> list[tuple[str, str]]:
        """Return the pages in the navigation, as (path, name)."""
        raise NotImplementedError

    def close(self) -> None:
        """End what was started for the pages; commands that run in the background go on."""
        if self._own_commands:
            self.commands.close()
        self.uploads.close()

    # Building blocks

    def page(self, path: str, show: Callable[[Request], Awaitable[Response]]) -> Route:
        """Return the route of a page, which changes nothing."""
        return Route(path, show, methods=["GET"])

    def action(self, path: str, act: Handler) -> Route:
        """Return the route of an action: a form of these pages, sent by POST."""

        async def checked(request: Request) -> Response:
            session: Session = request.state.session
            size = request.headers.get("content-length", "")
            if not size.isdigit() or int(size) > MOST_BYTES + (1 << 20):
                raise InputError(f"the form must be smaller than {MOST_BYTES >> 20} MB")
            async with request.form(max_files=20, max_fields=200) as form:
                if not self._guard.own_form(session, text(form, "form_token")):
                    raise HTTPException(403, "this form was not made for this session; nothing was changed")
                return await act(request, form)

        return Route(path, checked, methods=["POST"])

    @property
    def _guard(self) -> Guard:
        assert self.guard is not None
        return self.guard

    @property
    def base(self) -> str:
        """The path below which all pages are."""
        return self._guard.base

    async def run(self, *arguments: str) -> Finished:
        """Run a command to its end."""
        return await run_in_threadpool(self.commands.run, *arguments)

    async def facts(self, *arguments: str) -> Any:
        """Return the JSON that a command prints, whatever its exit code; BrokenError where it prints none."""
        finished = await self.run(*arguments)
        found = finished.json()
        if found is None:
            raise BrokenError(finished.error)
        return found

    def render(self, request: Request, template: str, status: int = 200, **content: Any) -> HTMLResponse:
        """Return a page from a template."""
        session: Session | None = getattr(request.state, "session", None)
        html = (
            _environment()
            .get_template(template)
            .render(
                base=self.base,
                layout=self.layout,
                links=self.links(),
                here=request.url.path.removeprefix(self.base),
                form_token="" if session is None else session.form_token,
                seen=self.desk.number,
                under_way=None if session is None else self.desk.under_way,
                signed_in=session is not None,
                **content,
            )
        )
        headers: dict[str, str] = {}
        # A page with names does not stay on the screen after it is locked.
        if session is not None and 'http-equiv="refresh"' not in html:
            headers["Refresh"] = f"{math.ceil(self._guard.idle_seconds) + 1}; url={self._again(request)}"
        return HTMLResponse(html, status, headers=headers)

    def _again(self, request: Request) -> str:
        """Return the address by which a page loads itself again, without counting as use."""
        if request.method != "GET" or request.url.path.endswith("/open"):
            return f"{self.base}/?{WATCHING}"
        asked = [one for one in request.url.query.split("&") if one and one != WATCHING]
        return f"{request.url.path}?{'&'.join([*asked, WATCHING])}"

    def redirect(self, path: str) -> RedirectResponse:
        """Return a redirection to another of these pages."""
        return RedirectResponse(f"{self.base}{path}", 303)

    async def start(
        self,
        form: FormData,
        title: str,
        arguments: Sequence[str],
        *,
        back: str,
        at_once: str = "",
        told: Callable[[Job], None] = lambda job: None,
        **options: Any,
    ) -> Response:
        """Start an action, and lead to the page of its progress and outcome, or ``at_once`` to another."""
        job = await run_in_threadpool(
            lambda: self.desk.start(title, arguments, back=back, seen=text(form, "seen"), **options)
        )
        told(job)
        done = await run_in_threadpool(job.done.wait, _SHORT_SECONDS)
        if at_once and not done:
            return self.redirect(at_once)
        return self.redirect(back if done and job.returns and job.finished_well else f"/jobs/{job.id}")

    def live(self, request: Request, arguments: Sequence[str], fragment: Callable[[str], str]) -> Response:
        """Return server-sent events: one for every line of a command, made into a piece of a page."""
        if self._streams >= _MOST_STREAMS:
            return Response(status_code=429)
        return StreamingResponse(
            self._events(Headers(scope=request.scope), arguments, fragment), media_type="text/event-stream"
        )

    async def _events(
        self, headers: Headers, arguments: Sequence[str], fragment: Callable[[str], str]
    ) -> AsyncIterator[str]:
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        followed = _Followed()
        self._streams += 1
        try:
            # A browser that leaves meanwhile ends the wait, but not the thread that starts the command.
            await run_in_threadpool(followed.start, self.commands, list(arguments), loop, lines)
            while True:
                try:
                    line = await asyncio.wait_for(lines.get(), _LIVE_SECONDS)
                except TimeoutError:
                    line = ""
                # Watching is not using: an open page does not keep itself unlocked.
                if self._guard.session_of(headers, touch=False) is None:
                    yield "event: locked\ndata: locked\n\n"
                    return
                if line is None:
                    yield "event: ended\ndata: ended\n\n"
                    return
                if line:
                    html = fragment(line)
                    yield "".join(f"data: {part}\n" for part in html.splitlines()) + "\n"
                else:
                    yield ": still there\n\n"
        finally:
            self._streams -= 1
            followed.end()

    def report(self, path: Path, change: Callable[[str], str] = lambda html: html) -> Response:
        """Return a report, one file with everything inside, in a sandbox."""
        try:
            html = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        return HTMLResponse(change(html), headers={"Content-Security-Policy": REPORT_POLICY})

    # Pages that all roles have

    async def job_page(self, request: Request) -> Response:
        """Show an action: that it is under way, or its outcome."""
        job = self._job(request)
        if job.returns and job.done.is_set() and job.finished_well:
            return self.redirect(job.back)
        return self.render(request, "job.html.jinja", job=job, title=job.title)

    async def interrupt(self, request: Request, form: FormData) -> Response:
        """Interrupt an action that is under way."""
        job = self._job(request)
        if job.running is not None and not job.done.is_set():
            job.running.interrupt()
            await run_in_threadpool(job.done.wait, _SHORT_SECONDS)
        return self.redirect(f"/jobs/{job.id}")

    def _job(self, request: Request) -> Job:
        job = self.desk.find(request.path_params["job"])
        if job is None:
            raise HTTPException(404, "there is no such action; those of an earlier session are forgotten")
        return job

    async def lock(self, request: Request, form: FormData) -> Response:
        """Lock the pages at once."""
        self._guard.renew()
        request.state.session = None
        return self.render(request, "locked.html.jinja", title="Locked", wrong=False)

    async def open(self, request: Request) -> Response:
        """Exchange the token of the opening address for a cookie."""
        session = self._guard.exchange(request.query_params.get("token", ""))
        if session is None:
            return self.render(request, "locked.html.jinja", 403, title="Locked", wrong=True)
        # Not a redirection: the strict cookie is not sent along with one that began at another site.
        response = self.render(request, "opened.html.jinja", title="Open")
        response.set_cookie(COOKIE, session.cookie, path=self.base, httponly=True, samesite="strict")
        return response

    async def static(self, request: Request) -> Response:
        """Return the style sheet or the script."""
        if request.url.path.endswith(".css"):
            style = _read("capedjica.report", "style.css") + _read("capedjica.web", "web.css")
            return Response(style, media_type="text/css")
        return Response(_read("capedjica.web", "web.js"), media_type="text/javascript")


class _Followed:
    """A command whose output is followed while a page is open."""

    def __init__(self) -> None:
        self._lock, self._over = threading.Lock(), False
        self._running: Running | None = None

    def start(
        self,
        commands: Commands,
        arguments: list[str],
        loop: asyncio.AbstractEventLoop,
        lines: asyncio.Queue[str | None],
    ) -> None:
        """Start the command."""
        running = commands.launch(arguments)
        threading.Thread(target=_forward, args=(running, loop, lines), daemon=True).start()
        with self._lock:
            self._running = running
            if self._over:
                running.interrupt()

    def end(self) -> None:
        """Interrupt the command, also one that is being started."""
        with self._lock:
            self._over = True
            if self._running is not None:
                self._running.interrupt()


def _forward(running: Running, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    """Hand the lines of a command to a loop, and None at its end."""
    try:
        for line in running.lines():
            loop.call_soon_threadsafe(lines.put_nowait, line)
        running.result()
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except RuntimeError:
        # The loop has ended with the server.
        return


class Gate:
    """Lets requests in that :class:`Guard` knows, and puts the headers on every response."""

    def __init__(self, app: ASGIApp, pages: Pages, guard: Guard) -> None:
        self._app, self._pages, self._guard = app, pages, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        try:
            await self._app(scope, receive, with_headers)
        except Exception as error:
            # Nothing of the request is logged: it may name a participant.
            if not started:
                await self._error(request, 500, _unexpected(error))(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        guard, headers = self._guard, Headers(scope=request.scope)
        if not guard.known_host(headers):
            return Response("This server is for its own machine only.", 421, media_type="text/plain")
        path = request.scope["path"]
        if path != guard.base and not path.startswith(f"{guard.base}/"):
            return Response("There is no such page.", 404, media_type="text/plain")
        # Watching is not using: a page that loads itself again does not keep itself unlocked.
        watching = path.endswith("/live") or WATCHING in request.query_params
        request.state.session = guard.session_of(headers, touch=not watching)
        if request.method not in ("GET", "HEAD", "POST"):
            return Response("This method is not used here.", 405, media_type="text/plain")
        if request.method == "POST" and not guard.own_origin(headers):
            return self._error(request, 403, "the request came from another page; nothing was changed")
        if path.removeprefix(guard.base) in _OPEN:
            return None
        if request.state.session is None:
            return self._pages.render(request, "locked.html.jinja", 403, title="Locked", wrong=False)
        return None

    def _error(self, request: Request, status: int, words: str) -> Response:
        return self._pages.render(request, "error.html.jinja", status, title="Not done", words=words)


def make_application(pages: Pages, guard: Guard) -> ASGIApp:
    """Return the application of some pages behind a guard."""
    pages.guard = guard

    def failed(request: Request, error: Exception) -> Response:
        status, title = 400, "Not done"
        if isinstance(error, HTTPException):
            status, words = error.status_code, str(error.detail)
            title = "No such page" if status == 404 else title
            words = "there is no such page" if words == "Not Found" else words
        elif isinstance(error, CapedjicaError):
            words = str(error)
        else:
            status, words = 500, _unexpected(error)
        if isinstance(error, StaleError):
            status = 409
        if isinstance(error, BrokenError):
            status, title = 503, "Cannot be shown"
        return pages.render(request, "error.html.jinja", status, title=title, words=words)

    routes = [
        Route("/open", pages.open, methods=["GET"]),
        Route("/style.css", pages.static, methods=["GET"]),
        Route("/web.js", pages.static, methods=["GET"]),
        pages.action("/lock", pages.lock),
        pages.page("/jobs/{job}", pages.job_page),
        pages.action("/jobs/{job}/interrupt", pages.interrupt),
        *pages.routes(),
    ]
    app = Starlette(
        routes=[Mount(guard.base, routes=routes)],
        exception_handlers={CapedjicaError: failed, HTTPException: failed, Exception: failed},
    )
    app.router.redirect_slashes = False
    return Gate(app, pages, guard)


def _unexpected(error: Exception) -> str:
    return f"an unexpected {type(error).__name__} in the web pages; the commands are not affected"


def text(form: FormData, name: str) -> str:
    """Return a field of a form; empty where there is none."""
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def number(form: FormData, name: str, words: str) -> str:
    """Return a field that must be a number, as it was typed."""
    value = text(form, name)
    try:
        float(value)
    except ValueError:
        raise InputError(f"{words} must be a number, got {value[:40]!r}") from None
    return value


def uploaded(form: FormData, name: str) -> list[UploadFile]:
    """Return the files of a form."""
    return [one for one in form.getlist(name) if isinstance(one, UploadFile) and one.filename]


def plain(value: str, words: str) -> str:
    """Return an argument that a command cannot take for an option."""
    # defence: web-no-options-by-forms
    if value.startswith("-"):
        raise InputError(f"{words} must not begin with a dash, got {value[:40]!r}")
    return value


def typed_path(value: str, words: str) -> Path:
    """Return a path that was typed."""
    try:
        return Path(plain(value, words)).expanduser()
    except RuntimeError:
        raise InputError(
            f"{words} {value[:100]!r} begins with the name of an unknown user; expected a path"
        ) from None


def fragment(template: str, **content: Any) -> str:
    """Return a piece of a page."""
    return _environment().get_template(template).render(**content)


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("capedjica.web"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["command"] = shown
    environment.filters["parts"] = parts
    return environment


@cache
def _read(package: str, name: str) -> str:
    return (files(package) / "templates" / name).read_text(encoding="utf-8")
