"""Pages of the coordinator: sites, plan and prediction, kits, the run and its results, for one study."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from capedjica.errors import InputError
from capedjica.web.application import BrokenError, Pages, fragment, number, plain, text, uploaded
from capedjica.web.commands import Commands, Finished, Running
from capedjica.web.jobs import Job

# Size of the charts, in pixels, and the margin for their labels.
_WIDTH, _HEIGHT, _MARGIN = 640, 240, 44
_CARD: Final = "capedjica-site"
_LIMITS: Final = {"epsilon": (0.1, 50.0), "subjects": (4, 100_000), "sites": (2, 200)}


class StudyPages(Pages):
    """The pages of the study in a folder, or of a folder in which one is to be written."""

    role = "study"
    layout = "study.html.jinja"

    def __init__(self, study: Path, commands: Commands | None = None) -> None:
        super().__init__(commands)
        self.file = study if study.suffix == ".toml" else study / "study.toml"
        self.folder = self.file.parent
        self._study = str(self.file)
        self._predicted: dict[str, Any] | None = None
        self._planned: tuple[int, dict[str, Any] | None] | None = None
        self._predicting: Running | None = None
        self._run: Job | None = None
        self._pace: tuple[int, float] | None = None

    def links(self) -> list[tuple[str, str]]:
        """Return the pages in the navigation."""
        return [
            ("/", "Sites"),
            ("/terms", "Terms"),
            ("/plan", "Plan"),
            ("/kits", "Kits"),
            ("/run", "Run"),
            ("/results", "Results"),
        ]

    def routes(self) -> list[Route]:
        """Return the routes of a study."""
        return [
            self.page("/", self.sites),
            self.action("/new", self.create),
            self.action("/add", self.add_sites),
            self.page("/terms", self.terms),
            self.page("/plan", self.plan),
            self.page("/plan/draw", self.draw),
            self.page("/plan/prediction", self.draw_prediction),
            self.action("/plan/predict", self.predict),
            self.page("/kits", self.kits),
            self.action("/kits/make", self.provision),
            self.page("/run", self.run_page),
            self.page("/live", self.live_run),
            self.action("/run/start", self.start_run),
            self.action("/run/stop", self.stop_run),
            self.page("/results", self.results),
            self.action("/results/report", self.write_report),
            self.page("/results/read", self.read_report),
        ]

    @property
    def run_folder(self) -> Path:
        """Where the run is."""
        return self.folder / "run"

    async def _sites(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.facts("study", "sites", self._study, "--json")
        return found

    # Sites

    async def sites(self, request: Request) -> Response:
        """Show the sites of the study, or the form for a new study."""
        if not self.file.exists():
            return self.render(request, "new_study.html.jinja", title="New study", file=self._study)
        facts = await self._sites()
        return self.render(request, "study_sites.html.jinja", title=facts["title"], facts=facts)

    async def create(self, request: Request, form: FormData) -> Response:
        """Write a draft of a study."""
        command = ["study", "new", self._study, "--title", plain(text(form, "title"), "the title")]
        for field, words in (
            ("components", "the number of components"),
            ("timepoints", "time points of a typical scan"),
            ("epsilon", "epsilon"),
        ):
            command += [f"--{field}", number(form, field, words)]
        for field in ("features", "image-shape", "atlas", "mask"):
            if value := text(form, field):
                command += [f"--{field}", plain(value, field)]
        return await self.start(form, "Write the study", command, back="/")

    async def add_sites(self, request: Request, form: FormData) -> Response:
        """Add sites by their cards."""
        cards = _cards(text(form, "cards"))
        for file in uploaded(form, "files"):
            content = file.file.read(1 << 16)
            try:
                cards += _cards(content.decode())
            except UnicodeDecodeError:
                raise InputError("a file that was chosen is not a card; nothing was changed") from None
        if not cards:
            raise InputError("no card was given; expected text that begins with capedjica-site")
        command = ["study", "add-site", *cards, "--study", self._study]
        return await self.start(form, "Add sites", command, back="/")

    async def terms(self, request: Request) -> Response:
        """Show the study as sites read it before they approve."""
        finished = await self.run("study", "show", self._study)
        if not finished.ok:
            raise BrokenError(finished.error)
        return self.render(
            request, "study_terms.html.jinja", title="Terms", text=finished.out, study=self._study
        )

    # Plan

    async def plan(self, request: Request) -> Response:
        """Show the plan, with sliders."""
        own = await self._own_plan()
        values = _slider_values(request, own)
        return self.render(
            request,
            "plan.html.jinja",
            title="Plan",
            values=values,
            limits=_LIMITS,
            drawing=await self._drawing(values, own),
            own=own,
            movable=own is None or _movable(own["setting"]),
            predicted=self._predicted,
            prediction_problem="",
        )

    async def _own_plan(self) -> dict[str, Any] | None:
        """Return the plan of the study as it is; None where it cannot be planned yet."""
        if not self.file.exists():
            return None
        written = self.file.stat().st_mtime_ns
        if self._planned is None or self._planned[0] != written:
            self._planned = (written, (await self.run("plan", self._study, "--json")).json())
        return self._planned[1]

    async def draw(self, request: Request) -> Response:
        """Return the drawing of a plan, a piece of its page."""
        own = await self._own_plan()
        drawing = await self._drawing(_slider_values(request, own), own)
        return HTMLResponse(fragment("_plan.html.jinja", drawing=drawing))

    async def _drawing(self, values: dict[str, float], own: dict[str, Any] | None) -> dict[str, Any]:
        command = self._plan_command(values, own)
        finished = await self.run(*command, "--json")
        found = finished.json()
        if found is None:
            return {"problem": finished.error, "command": command}
        now = values["epsilon"], values["subjects"]
        needed = [(one["epsilon"], one["subjects"]) for one in found["subjects_needed"]]
        needed = sorted({*needed, now})
        curve = chart(needed, now, "ε", "participants needed")
        return {"problem": "", "plan": found, "curve": curve, "command": command}

    def _plan_command(self, values: dict[str, float], own: dict[str, Any] | None) -> list[str]:
        """Return the command that plans the study as it is, or one like it with other values."""
        if own is not None and (values == _own_values(own) or not _movable(own["setting"])):
            return ["plan", self._study]
        return _plan_of_values(values, None if own is None else own["setting"])

    async def predict(self, request: Request, form: FormData) -> Response:
        """Predict the quality of the maps by simulation."""
        given = {name: _within(name, text(form, name)) for name in _LIMITS}
        command = await self._prediction_command(given)

        def keep(finished: Finished) -> None:
            self._predicted = _prediction(finished, given)

        return await self.start(
            form,
            "Predict the quality",
            [*command, "--json"],
            display=command,
            back="/plan",
            returns=True,
            then=keep,
        )

    async def draw_prediction(self, request: Request) -> Response:
        """Return the drawing of a prediction, a piece of its page; an earlier one under way is given up."""
        values = _slider_values(request, await self._own_plan())
        command = await self._prediction_command(values)
        running = await run_in_threadpool(self.commands.launch, [*command, "--json"])
        earlier, self._predicting = self._predicting, running
        if earlier is not None:
            earlier.interrupt()
        finished = await run_in_threadpool(running.result)
        if self._predicting is running:
            self._predicting = None
        predicted = _prediction(finished, values)
        problem = "" if predicted is not None else finished.error
        return HTMLResponse(fragment("_prediction.html.jinja", predicted=predicted, problem=problem))

    async def _prediction_command(self, values: dict[str, float]) -> list[str]:
        return [*self._plan_command(values, await self._own_plan()), "--predict"]

    # Kits

    async def kits(self, request: Request) -> Response:
        """Show the kits, or the form that makes them."""
        facts = await self._sites()
        kits = sorted((self.folder / "federation" / "kits").glob("*.zip"))
        return self.render(
            request, "kits.html.jinja", title="Kits", facts=facts, kits=[str(kit) for kit in kits]
        )

    async def provision(self, request: Request, form: FormData) -> Response:
        """Seal the study, and make a kit for every site."""
        command = ["study", "provision", self._study]
        if host := text(form, "host"):
            command += ["--host", plain(host, "the host")]
        if text(form, "port"):
            command += ["--port", number(form, "port", "the port")]
        if text(form, "again"):
            command.append("--again")
        return await self.start(form, "Seal the study and make kits", command, back="/kits")

    # Run

    async def _status(self) -> tuple[dict[str, Any] | None, str]:
        finished = await self.run("status", self._study, "--json")
        found = finished.json()
        return (None, finished.error) if found is None else (self._timed(found), "")

    def _timed(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Add the time left, estimated from the releases made while the pages were open."""
        left, done, now = None, facts["n_done"], time.monotonic()
        if facts["state"] != "running":
            self._pace = None
        elif self._pace is None or done < self._pace[0]:
            self._pace = (done, now)
        elif done > self._pace[0]:
            each = (now - self._pace[1]) / (done - self._pace[0])
            left = math.ceil(each * (facts["n_total"] - done))
        return facts | {"seconds_left": left}

    async def run_page(self, request: Request) -> Response:
        """Show the state of the run."""
        facts, problem = await self._status()
        mine = self._run is not None and not self._run.done.is_set()
        return self.render(
            request,
            "run.html.jinja",
            title="Run",
            facts=facts,
            problem=problem,
            mine=mine,
            job=self._run,
            study=self._study,
            sealed=(self.folder / "federation" / "sealed.json").exists(),
        )

    async def live_run(self, request: Request) -> Response:
        """Stream the state of the run."""

        def show(line: str) -> str:
            try:
                facts = json.loads(line)
            except ValueError:
                raise BrokenError("the state of the run cannot be read") from None
            return fragment("_run.html.jinja", facts=self._timed(facts), problem="")

        return self.live(request, ["status", self._study, "--watch", "--json"], show)

    async def start_run(self, request: Request, form: FormData) -> Response:
        """Run the study in the background; it goes on when the pages are closed."""
        engine = text(form, "engine")
        if engine not in ("flare", "inprocess"):
            raise InputError(f"the engine must be flare or inprocess, got {engine[:40]!r}")
        if self._run is not None and not self._run.done.is_set():
            raise InputError("the study runs already; nothing was changed")
        command = ["run", self._study, "--engine", engine]

        def remember(job: Job) -> None:
            self._run = job

        return await self.start(
            form,
            "Run the study",
            command,
            back="/run",
            log=self.folder / "run-web.log",
            at_once="/run",
            told=remember,
        )

    async def stop_run(self, request: Request, form: FormData) -> Response:
        """Interrupt the run, as Ctrl-C does."""
        if self._run is None or self._run.running is None or self._run.done.is_set():
            raise InputError("no run was started from these pages; stop it where it was started")
        self._run.running.interrupt()
        return self.redirect("/run")

    # Results

    async def results(self, request: Request) -> Response:
        """Show what a complete run published."""
        facts, problem = await self._status()
        return self.render(
            request,
            "study_results.html.jinja",
            title="Results",
            facts=facts,
            problem=problem,
            run=str(self.run_folder),
            report=(self.run_folder / "report.html").exists(),
        )

    async def write_report(self, request: Request, form: FormData) -> Response:
        """Write the report of the run."""
        return await self.start(form, "Write the report", ["report", str(self.run_folder)], back="/results")

    async def read_report(self, request: Request) -> Response:
        """Show the report."""
        path = self.run_folder / "report.html"
        if not path.exists():
            raise HTTPException(404, "there is no report yet")
        return self.report(path)


def _cards(lines: str) -> list[str]:
    cards = [line.strip() for line in lines.splitlines() if line.strip()]
    # The command would open anything else as a file.
    wrong = next((card for card in cards if not card.startswith(_CARD)), None)
    if wrong is not None:
        raise InputError(f"{wrong[:40]!r} is not a card; expected text that begins with {_CARD}")
    return cards


def _movable(setting: dict[str, Any]) -> bool:
    """Whether sliders can change the plan: only networks are planned from numbers alone."""
    first, *others = setting["analyses"]
    networks = first["kind"] == "ica" and first.get("method") in ("subject", "paper")
    return not others and networks and setting["mechanism"] == "cape"


def _slider_values(request: Request, own: dict[str, Any] | None) -> dict[str, float]:
    """Return the values of the sliders: as asked for, or those of the study."""
    values: dict[str, float] = {"epsilon": 2.0, "subjects": 200, "sites": 4}
    if own is not None:
        values = _own_values(own)
    for name in _LIMITS:
        asked = request.query_params.get(name)
        if asked is None:
            continue
        values[name] = _within(name, asked)
    return values


def _within(name: str, asked: str) -> float:
    """Return the value of a slider; refuse one beyond its ends."""
    least, most = _LIMITS[name]
    try:
        value = float(asked)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InputError(f"{name} must be a number from {least:g} to {most:g}, got {asked[:40]!r}")
    return value if name == "epsilon" else int(value)


def _own_values(own: dict[str, Any]) -> dict[str, float]:
    setting = own["setting"]
    return {
        "epsilon": own["budget"] or 2.0,
        "subjects": setting["n_subjects"],
        "sites": setting["n_sites"],
    }


def _plan_of_values(values: dict[str, float], setting: dict[str, Any] | None) -> list[str]:
    """Return the command that plans a study of these values, and else like the study where there is one."""
    command = ["plan", "--epsilon", f"{values['epsilon']:g}"]
    command += ["--subjects", f"{int(values['subjects'])}", "--sites", f"{int(values['sites'])}"]
    if setting is None:
        return command
    analysis = setting["analyses"][0]
    command += ["--method", analysis["method"], "--components", str(analysis["n_components"])]
    command += ["--features", str(setting["n_features"]), "--timepoints", str(setting["scan_length"])]
    if setting["image_shape"]:
        command += ["--image-shape", "x".join(map(str, setting["image_shape"]))]
    if analysis["max_iter"] is not None:
        command += ["--iterations", str(analysis["max_iter"])]
    return [*command, "--delta", f"{setting['delta']:g}", "--masking", setting["masking"]]


def _prediction(finished: Finished, values: dict[str, float]) -> dict[str, Any] | None:
    """Return a prediction with its chart; None where there is none."""
    found = finished.json()
    if found is None:
        return None
    prediction: dict[str, Any] = found["prediction"]
    rows = prediction["qualities"]
    points = [(one["epsilon"], one["map_correlation"]) for one in rows]
    planned = [point for point, one in zip(points, rows, strict=True) if one["planned"]]
    drawn = chart(points, next(iter(planned), None), "ε", "correlation of maps with the truth")
    return prediction | {"values": values, "curve": drawn}


def chart(
    points: list[tuple[float, float]], now: tuple[float, float] | None, across: str, up: str
) -> dict[str, Any]:
    """Return a line chart as coordinates for a template; the horizontal axis is logarithmic."""
    shown = [(x, y) for x, y in [*points, *([] if now is None else [now])] if x > 0 and y is not None]
    low, high = min(math.log(x) for x, _ in shown), max(math.log(x) for x, _ in shown)
    top = max(y for _, y in shown) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        part = (math.log(x) - low) / ((high - low) or 1.0)
        across_at = _MARGIN + part * (_WIDTH - 2 * _MARGIN)
        return round(across_at, 1), round(_HEIGHT - _MARGIN - y / top * (_HEIGHT - 2 * _MARGIN), 1)

    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "margin": _MARGIN,
        "line": " ".join("{},{}".format(*place(x, y)) for x, y in sorted(points) if x > 0),
        "ticks": [(place(x, 0)[0], f"{x:g}") for x, _ in points if x > 0],
        "dots": [(*place(x, y), f"{x:g}: {y:.3g}") for x, y in points if x > 0],
        "now": None if now is None else place(*now),
        "top": f"{top:.3g}",
        "across": across,
        "up": up,
    }
