"""Pages of a data manager: cohort, budget, studies, ledger, withdrawals and results of one site."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capedjica.errors import InputError
from capedjica.web.application import BrokenError, Pages, fragment, number, plain, text, typed_path, uploaded
from capedjica.web.commands import Commands, Finished
from capedjica.web.uploads import unpack_results

KINDS: Final = ("auto", "files", "nifti", "bids", "abide", "table")
_SHOWN_MESSAGES: Final = 200
# Links of a report to files next to it, whose names are those of participants: they stay out of addresses.
_FILE_LINK: Final = re.compile(r'<a href="(?!#|data:)[^"]*">([^<]*)</a>')


@dataclass(frozen=True)
class Offer:
    """A study as it was received: where its private copy is, what its file is called, and its terms."""

    path: Path
    name: str
    terms: dict[str, Any]


class SitePages(Pages):
    """The pages of the site in a folder, or of a folder in which one is to be created."""

    role = "site"
    layout = "site.html.jinja"

    def __init__(self, folder: Path, commands: Commands | None = None) -> None:
        super().__init__(commands)
        self.folder = folder.parent if folder.name == "site.toml" else folder
        self._site = str(self.folder)
        self._checked: dict[str, Any] | None = None
        self._offers: dict[str, Offer] = {}
        self._reports: dict[str, Path] = {}

    def links(self) -> list[tuple[str, str]]:
        """Return the pages in the navigation."""
        return [
            ("/", "Overview"),
            ("/cohort", "Cohort"),
            ("/studies", "Studies"),
            ("/ledger", "Ledger and outbox"),
            ("/withdrawals", "Withdrawals"),
            ("/results", "Results"),
        ]

    def routes(self) -> list[Route]:
        """Return the routes of a site."""
        return [
            self.page("/", self.overview),
            self.action("/new", self.create),
            self.page("/live", self.live_status),
            self.page("/cohort", self.cohort),
            self.action("/cohort/check", self.check),
            self.action("/cohort/enrol", self.enrol),
            self.page("/studies", self.studies),
            self.action("/studies/offer", self.receive),
            self.page("/studies/offer/{offer}", self.offer),
            self.action("/studies/approve", self.approve),
            self.action("/studies/start", self.start_study),
            self.action("/studies/stop", self.stop_study),
            self.page("/studies/revoke/{study}", self.revocation),
            self.action("/studies/revoke", self.revoke),
            self.page("/ledger", self.ledger),
            self.action("/ledger/verify", self.verify),
            self.page("/withdrawals", self.withdrawals),
            self.action("/withdrawals/add", self.withdraw),
            self.page("/results", self.results),
            self.action("/results/make", self.make_results),
            self.page("/results/{number}/report", self.local_report),
            self.page("/results/group/{report}", self.group_report),
        ]

    async def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.facts("site", "show", self._site, "--json")
        return found

    async def _status(self) -> tuple[list[dict[str, Any]], str]:
        """Return the state of each study with a kit, and why it is not known, if it is not."""
        finished = await self.run("site", "status", self._site, "--json")
        found = finished.json()
        return ([], finished.error) if found is None else (found, "")

    # Overview

    async def overview(self, request: Request) -> Response:
        """Show the site, its budget and the state of its studies; or the form for a new site."""
        if not (self.folder / "site.toml").exists():
            return self.render(
                request, "new_site.html.jinja", title="New site", folder=self._site, kinds=KINDS, name=""
            )
        facts, (states, problem) = await asyncio.gather(self._facts(), self._status())
        return self.render(
            request,
            "overview.html.jinja",
            title=f"Site {facts['site']}",
            facts=facts,
            states=states,
            problem=problem,
        )

    async def create(self, request: Request, form: FormData) -> Response:
        """Create a site."""
        command = ["site", "init", plain(text(form, "name"), "the site's name"), "--folder", self._site]
        for field, option, words in (
            ("total_epsilon", "--total-epsilon", "the limit in total"),
            ("study_epsilon", "--study-epsilon", "the limit for one study"),
            ("delta", "--delta", "delta"),
        ):
            command += [option, number(form, field, words)]
        data, kind = text(form, "data"), text(form, "kind")
        if kind not in KINDS:
            raise InputError(f"the kind of data must be one of {', '.join(KINDS)}")
        if data:
            command += ["--data", str(typed_path(data, "the folder of the scans"))]
        return await self.start(form, "Create the site", [*command, "--kind", kind], back="/")

    async def live_status(self, request: Request) -> Response:
        """Stream the state of the studies."""
        command = ["site", "status", self._site, "--watch", "--json"]
        return self.live(request, command, lambda line: fragment("_status.html.jinja", **_live(line)))

    # Cohort

    async def cohort(self, request: Request) -> Response:
        """Show who is enrolled, and what the latest check found."""
        facts = await self._facts()
        return self.render(
            request, "cohort.html.jinja", title="Cohort", facts=facts, checked=self._checked, site=self._site
        )

    async def check(self, request: Request, form: FormData) -> Response:
        """Read every scan, and state what is wrong."""
        study = await self._approved_file(text(form, "study"))

        def keep(finished: Finished) -> None:
            found = finished.json()
            if found is not None:
                self._checked = found | {"time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}

        command = ["site", "check", self._site, *study]
        return await self.start(
            form,
            "Check the scans",
            [*command, "--json"],
            display=command,
            back="/cohort",
            returns=True,
            then=keep,
        )

    async def enrol(self, request: Request, form: FormData) -> Response:
        """Fix the list of participants."""
        command = ["site", "enrol", self._site, *await self._approved_file(text(form, "study"))]
        for label in text(form, "participants").replace(",", " ").split():
            command += ["--participant-label", plain(label, "a participant's label")]
        for option in ("task", "space"):
            if value := text(form, option):
                command += [f"--{option}", plain(value, option)]
        if text(form, "again"):
            command.append("--again")
        return await self.start(form, "Enrol the cohort", command, back="/cohort")

    async def _approved_file(self, digest: str) -> list[str]:
        """Return the option for a study, by the beginning of its hash; none for an empty one."""
        if not digest:
            return []
        return ["--study", str((await self._study(digest))["file"])]

    async def _study(self, digest: str) -> dict[str, Any]:
        for one in (await self._facts())["studies"]:
            if one["study"].startswith(digest) and len(digest) >= 16:
                return dict(one)
        raise HTTPException(404, "this site's ledger has no such study")

    # Studies

    async def studies(self, request: Request) -> Response:
        """Show the studies of the site, and the form to receive one."""
        facts, (states, problem) = await asyncio.gather(self._facts(), self._status())
        return self.render(
            request, "studies.html.jinja", title="Studies", facts=facts, states=states, problem=problem
        )

    async def receive(self, request: Request, form: FormData) -> Response:
        """Receive a kit or a study, and read its terms; nothing is approved."""
        files, path = uploaded(form, "files"), text(form, "path")
        cards: list[str] = []
        if files:
            _, folder = await run_in_threadpool(self.uploads.keep, files)
            names = sorted(one.name for one in folder.iterdir())
            cards = [str(folder / name) for name in names if name.endswith(".card")]
            kits = [name for name in names if name.endswith((".zip", ".toml"))]
            if len(kits) != 1:
                raise InputError(
                    f"got {', '.join(names)}; expected one kit (NAME.zip), or one study.toml with the files "
                    "that it names, and cards of other sites if you have them"
                )
            given, name = folder / kits[0], kits[0]
        elif path:
            given, name = await run_in_threadpool(self.uploads.copy, typed_path(path, "the path")), path
        else:
            raise InputError("no file was chosen; expected a kit (NAME.zip) or a study.toml")
        options = [word for one in cards for word in ("--card", one)]
        finished = await self.run("site", "approve", str(given), self._site, "--show", "--json", *options)
        terms = finished.json()
        if terms is None:
            raise InputError(finished.error.replace(f"{given.parent}/", ""))
        key = secrets.token_hex(8)
        self._offers[key] = Offer(given, name, terms)
        return self.redirect(f"/studies/offer/{key}")

    async def offer(self, request: Request) -> Response:
        """Show the terms of a study that was received."""
        key = request.path_params["offer"]
        offer = self._offer(key)
        return self.render(
            request,
            "offer.html.jinja",
            title="Approve a study",
            key=key,
            terms=offer.terms,
            name=offer.name,
            phrase=_phrase("approve", offer.terms["hash"]),
            command=["site", "approve", offer.name, *self._bound(offer)],
            site=self._site,
        )

    def _bound(self, offer: Offer) -> list[str]:
        """Return the options by which a command approves exactly what was shown."""
        options = [self._site, "--hash", offer.terms["hash"]]
        signer = offer.terms["coordinator_fingerprint"]
        return options if signer is None else [*options, "--coordinator", signer]

    def _offer(self, key: str) -> Offer:
        if key not in self._offers:
            raise HTTPException(404, "this study was not received in this session; choose its file again")
        return self._offers[key]

    async def approve(self, request: Request, form: FormData) -> Response:
        """Approve exactly the study that was shown."""
        offer = self._offer(text(form, "offer"))
        digest: str = offer.terms["hash"]
        for index, site in enumerate(offer.terms["sites"]):
            _compare(text(form, f"said_{index}"), site["fingerprint"], f"site {site['name']}")
        _compare(
            text(form, "said_coordinator"), offer.terms["coordinator_fingerprint"] or "", "the coordinator"
        )
        _confirm(form, _phrase("approve", digest))
        options = [*self._bound(offer), "--yes"]
        return await self.start(
            form,
            "Approve the study",
            ["site", "approve", str(offer.path), *options],
            display=["site", "approve", offer.name, *options],
            back="/studies",
        )

    async def start_study(self, request: Request, form: FormData) -> Response:
        """Connect the site to the server of a study."""
        command = ["site", "start", self._site, "--study", _digest(form)]
        return await self.start(form, "Connect to the study", command, back="/studies")

    async def stop_study(self, request: Request, form: FormData) -> Response:
        """Disconnect the site from a study."""
        command = ["site", "stop", self._site, "--study", _digest(form)]
        return await self.start(form, "Disconnect from the study", command, back="/studies")

    async def revocation(self, request: Request) -> Response:
        """Show what a revocation means."""
        study = await self._study(request.path_params["study"])
        return self.render(
            request,
            "revoke.html.jinja",
            title="Revoke an approval",
            study=study,
            phrase=_phrase("revoke", _shown_hash(study)),
            hash=_shown_hash(study),
            command=["site", "revoke", study["study"], self._site],
        )

    async def revoke(self, request: Request, form: FormData) -> Response:
        """Revoke an approval, for good."""
        study = await self._study(text(form, "study"))
        _confirm(form, _phrase("revoke", _shown_hash(study)))
        # By its hash in the ledger: a title may be that of another study, or the name of a file.
        command = ["site", "revoke", "--yes", study["study"], self._site]
        return await self.start(form, "Revoke the approval", command, back="/studies")

    # Ledger

    async def ledger(self, request: Request) -> Response:
        """Show what was spent, and what left."""
        facts, rows, sent = await asyncio.gather(
            self._facts(),
            self.facts("ledger", "show", self._site, "--json"),
            self.facts("site", "outbox", self._site, "--json"),
        )
        return self.render(
            request,
            "ledger.html.jinja",
            title="Ledger and outbox",
            facts=facts,
            rows=rows,
            sent=sent[-_SHOWN_MESSAGES:],
            n_sent=len(sent),
            site=self._site,
        )

    async def verify(self, request: Request, form: FormData) -> Response:
        """Check that the ledger is complete and unchanged."""
        return await self.start(form, "Verify the ledger", ["ledger", "verify", self._site], back="/ledger")

    # Withdrawals

    async def withdrawals(self, request: Request) -> Response:
        """Show who withdrew, and the form for a withdrawal."""
        facts = await self._facts()
        return self.render(
            request, "withdrawals.html.jinja", title="Withdrawals", facts=facts, site=self._site
        )

    async def withdraw(self, request: Request, form: FormData) -> Response:
        """Withdraw a participant, for good."""
        name = plain(text(form, "participant"), "the participant's name")
        if not name:
            raise InputError("no participant was named; nothing was changed")
        if text(form, "confirm") != name:
            raise InputError(
                "the name was not typed twice in the same way; nothing was changed. Type it in both fields"
            )
        command = ["site", "withdraw", name, self._site, "--yes"]
        return await self.start(form, "Withdraw a participant", command, back="/withdrawals")

    # Results

    async def results(self, request: Request) -> Response:
        """Show the results about participants of this site, and the forms that compute them."""
        return self.render(
            request,
            "results.html.jinja",
            title="Results",
            facts=await self._facts(),
            reports=list(self._reports),
            site=self._site,
        )

    async def make_results(self, request: Request, form: FormData) -> Response:
        """Compute individual results or a report from a complete run."""
        what, path, files = text(form, "what"), text(form, "path"), uploaded(form, "files")
        if files:
            _, folder = await run_in_threadpool(self.uploads.keep, files)
            first = next(iter(folder.iterdir()))
            run, name = await run_in_threadpool(unpack_results, first), first.name
        elif path:
            run, name = typed_path(path, "the folder"), path
        else:
            raise InputError("no results were chosen; expected results.zip, or the folder of a run")
        if what in ("results", "report"):
            title = "Compute individual results" if what == "results" else "Write the local report"
            return await self.start(
                form,
                title,
                ["site", what, str(run), self._site],
                display=["site", what, name, self._site],
                back="/results",
            )
        if what != "group":
            raise InputError(f"what is to be computed must be results, report or group, got {what[:40]!r}")
        key = secrets.token_hex(8)
        out = run.parent / f"{key}.html" if files else self.uploads.place(f"{key}.html")

        def keep(finished: Finished) -> None:
            if finished.ok:
                self._reports[key] = out

        return await self.start(
            form,
            "Write the report of the study",
            ["report", str(run), "--out", str(out)],
            display=["report", name],
            back="/results",
            then=keep,
        )

    async def local_report(self, request: Request) -> Response:
        """Show the report about this site's participants."""
        chosen, found = request.path_params["number"], (await self._facts())["results"]
        if not chosen.isdecimal() or int(chosen) >= len(found) or not found[int(chosen)]["report"]:
            raise HTTPException(404, "there is no such report")
        return self.report(Path(found[int(chosen)]["report"]), lambda html: _FILE_LINK.sub(r"\1", html))

    async def group_report(self, request: Request) -> Response:
        """Show the report of a study that was written in this session."""
        path = self._reports.get(request.path_params["report"])
        if path is None:
            raise HTTPException(404, "there is no such report")
        return self.report(path)


def _live(line: str) -> dict[str, Any]:
    try:
        return {"states": json.loads(line), "problem": ""}
    except ValueError:
        raise BrokenError("the state of the site cannot be read") from None


def _shown_hash(study: dict[str, Any]) -> str:
    """Return the hash of a study of the ledger; that of its contract where there is no approved copy."""
    return str(study["hash"] or study["study"])


def _digest(form: FormData) -> str:
    digest = text(form, "study")
    if not re.fullmatch(r"[0-9a-f]{16,64}", digest):
        raise InputError("a study is named by its hash")
    return digest


def _phrase(what: str, digest: str) -> str:
    """Return what is typed to confirm an action about a study."""
    return f"{what} {digest[:8]}"


def _compare(said: str, known: str, whose: str) -> None:
    """Refuse where a fingerprint was read out, and is another one."""
    if said and "".join(said.split()).lower() != "".join(known.split()).lower():
        raise InputError(
            f"the fingerprint that {whose} read out is not the one in this study; nothing was changed. Do "
            "not approve the study, and call the coordinator"
        )


def _confirm(form: FormData, phrase: str) -> None:
    # defence: web-typed-confirmation
    if " ".join(text(form, "confirm").lower().split()) != phrase:
        raise InputError(f"the confirmation must be typed as '{phrase}'; nothing was changed")
