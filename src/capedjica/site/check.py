"""Report of a site for its data manager before a study: data, problems, privacy cost and approval.

Checking a site spends nothing and creates no ledger.
"""

from __future__ import annotations

import decimal
import io
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from capedjica.data.scans import told_once
from capedjica.errors import InputError
from capedjica.flare.certificates import certificate_warning
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.charges import epsilon_of
from capedjica.privacy.wording import NOT_FROM_THE_AGGREGATOR, round_up, short
from capedjica.securesum.identity import PublicIdentity
from capedjica.site.approval.admission import Reason, Scans, spent_on, why_not
from capedjica.site.flare.kits import installed
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import read_record
from capedjica.site.participants.cohort import Roll, Tick
from capedjica.site.participants.enrolment import Enrolment
from capedjica.study.approval_text import describe, show_facts, show_releases
from capedjica.study.study_file import Study
from capedjica.tools.terminal import show_heading, show_paragraph
from capedjica.tools.text import counted, printable

KINDS: Final = {
    "files": "tables of region time series, one per participant",
    "nifti": "4-D images",
    "bids": "BIDS derivatives in the layout of fMRIPrep",
    "abide": "ABIDE as downloaded by nilearn",
    "table": "one table with a row per participant",
}
# A smaller epsilon is of no use to any study.
_NEXT_TO_NOTHING: Final = 0.01
_UNWRAPPED: Final = 2000


def site_report(home: SiteHome, study: Study | None, tick: Tick = lambda: None) -> dict[str, Any]:
    """Return the facts shown by :func:`show_site`; ``tick`` is called after each participant.

    ``obstacles`` lists the reasons why the site cannot take part.
    """
    scans = Scans(home, study, tick=tick)
    found = why_not(home, study, scans)
    facts: dict[str, Any] = {
        "site": home.settings.name,
        "folder": str(home.data_path),
        "warnings": _kit_warnings(home, study),
        "obstacles": [reason.words for reason in found],
    }
    if study is not None and home.settings.name in study.contract.roster.names:
        facts["approval"] = _approval(home, study, found)
    try:
        roll, seen = scans.roll, [(one.name, str(one), one.fatal, one.alike) for one in scans.problems]
    except InputError as error:
        facts["data"], seen = None, [("", str(error), False, "")] * (str(error) not in facts["obstacles"])
    else:
        facts["data"] = _measured(scans)
        facts["enrolment"] = None if roll.enrolment is None else _enrolment(home, roll.enrolment, roll)
        facts["usable"] = {"people": len(roll.people), "usable": scans.n_usable}
    facts["problems"] = [dict(zip(("person", "what", "fatal", "alike"), one, strict=True)) for one in seen]
    return facts | _cost(home, study)


def next_words(home: SiteHome, study: Study | None, facts: dict[str, Any]) -> str:
    """Return the number of usable participants and the data manager's next step."""
    folder, card = shlex.quote(str(home.folder)), home.card_path
    if facts["data"] is None:
        return (
            "No data could be read; next: correct the problem below, such as the path in [data] of site.toml."
        )
    count = "{usable:,} of {people:,} usable".format(**facts["usable"])
    if not facts["usable"]["usable"]:
        return f"{count}; next: correct the problems listed above and check again."
    if facts["enrolment"] is None:
        others = ", which excludes the others" * (facts["usable"]["usable"] < facts["usable"]["people"])
        return f"{count}; next: capedjica site enrol {folder}{others}."
    if study is None:
        return f"{count}; next: send {card} to the coordinator, then check again with --study."
    approval = facts.get("approval")
    if approval is None or approval["refused"]:
        return f"{count}; next: resolve the problems below; ask the coordinator about those of the study."
    if not approval["approved"] or approval["changed"]:
        return f"{count}; next: capedjica site approve STUDY {folder}, with your kit or the study.toml."
    if approval["over"]:
        return f"{count}; next: nothing to do, the study has finished."
    if installed(home, study.hash.hex()):
        return f"{count}; next: capedjica site start {folder}, unless it is running."
    return f"{count}; next: nothing to do until the coordinator runs the study or sends its kit."


def _kit_warnings(home: SiteHome, study: Study | None) -> list[str]:
    """Return warnings about kits that have expired or expire soon: the kit of a study, or all kits."""
    try:
        kits = installed(home)
    except InputError as error:
        return [str(error)]
    chosen = [kit for kit in kits if study is None or kit.label.study == study.hash.hex()]
    warnings = filter(None, (certificate_warning(kit.workspace) for kit in chosen))
    return [f"{words}; ask the coordinator for a new kit" for words in warnings]


def _approval(home: SiteHome, study: Study, found: list[Reason]) -> dict[str, Any]:
    """Return whether and when a study was approved, and what changed between approval and start."""
    spent, record = spent_on(home, study), read_record(home, study)
    return {
        "approved": spent is not None and not spent.revoked,
        "by_itself": home.settings.policy.auto_approve,
        "when": None if record is None else record.when,
        "releases": 0 if spent is None else spent.n_releases,
        "over": home.is_over(study.hash.hex()),
        "refused": any(reason.of_terms for reason in found),
        "changed": [reason.words for reason in found if reason.kind == "record"],
    }


def _measured(scans: Scans) -> dict[str, Any]:
    """Return counts and sizes of the recordings; unreadable recordings are skipped."""
    roll, measured = scans.roll, [one.measures for one in scans.measured]
    lengths = [one.n_timepoints for one in measured]
    times = [one.repetition_time for one in measured]
    return {
        "kind": roll.kind,
        "people": len(roll.people),
        "recordings": sum(len(person.recordings) for person in roll.found),
        "people_with_several": sum(len(person.recordings) > 1 for person in roll.found),
        "timepoints": [min(lengths), median(lengths), max(lengths)] if lengths else None,
        "repetition_times": sorted({round(time, 4) for time in times if time is not None}),
        "without_repetition_time": times.count(None),
        "grids": dict(Counter(one.grid for one in measured).most_common()),
    }


def _enrolment(home: SiteHome, enrolment: Enrolment, roll: Roll) -> dict[str, Any]:
    now, then = home.settings.data, enrolment.data
    return {
        "when": enrolment.when,
        "study": enrolment.study,
        "people": len(enrolment.enrolled),
        "left_out": {one.name: list(one.reasons) for one in enrolment.left_out},
        "selection_changed": (now.kind, now.pattern) != (then.kind, then.pattern),
        "missing": roll.missing,
        "withdrawn": sorted(roll.withdrawn),
    }


def _cost(home: SiteHome, study: Study | None) -> dict[str, Any]:
    """Return the site's limits, the budget spent, and the most that a study would add."""
    policy, totals = home.policy, home.totals()
    spent = 0.0 if totals is None else totals.overall.mu2
    limits = {
        "total_epsilon": policy.total.epsilon,
        "study_epsilon": policy.per_study.epsilon,
        "delta": policy.total.delta,
        "spent_epsilon": _finite(epsilon_of(spent, policy.total.delta)),
    }
    if study is None or home.settings.name not in study.contract.roster.names:
        return {"limits": limits, "study": None}
    contract, cap = study.contract, study.contract.cap(home.settings.name)
    known = None if totals is None else totals.studies.get(contract.hash)
    to_come = max(0.0, cap.mu2 - (0.0 if known is None else known.mu2)) if contract.protects else math.inf
    # Unprotected releases have an infinite cost; where they are allowed, they do not count in the total.
    left = policy.total.mu2 - to_come - (0.0 if math.isinf(spent) else spent)
    return {
        "limits": limits,
        "study": describe(study)
        | {
            "own_epsilon": cap.epsilon if contract.protects else None,
            "approved": known is not None,
            "epsilon_afterwards": _finite(epsilon_of(spent + to_come, policy.total.delta)),
            "epsilon_left": gaussian_epsilon(math.sqrt(left), policy.total.delta) if left >= 0 else None,
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# Terminal output


def terms(home: SiteHome, study: Study) -> dict[str, Any]:
    """Return the terms a site is asked to approve, and what they leave of its limits, for use by programs."""
    facts, name = _cost(home, study), home.settings.name
    guarantee = study.guarantee(name).as_dict()
    own = {"name": name, "guarantee": guarantee, "words": list(_limit_words(facts))}
    described: dict[str, Any] = facts["study"] or describe(study)
    return described | {"own": own}


def show_terms(home: SiteHome, study: Study, console: Console) -> None:
    """Explain to a site of a study what it is asked to approve, and what that leaves of its limits."""
    show_facts(terms(home, study), console)


def read_card(path: Path) -> str:
    """Return the card in a file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a card: {error}") from None


def compare_cards(study: Study, cards: Sequence[str]) -> dict[str, bool]:
    """Return for each card that other sites sent whether the study has the same key under its name."""
    keys = {site.name: site.public_key for site in study.contract.roster.sites}
    found = {}
    for text in cards:
        card = PublicIdentity.from_card(text)
        if card.name not in keys:
            raise InputError(f"site {printable(card.name)}, whose card was given, is not in this study")
        found[card.name] = keys[card.name] == card.public_key
    return found


def offer(home: SiteHome, study: Study) -> dict[str, Any]:
    """Return a study as it is offered to a site, in words and for programs, and why it cannot be approved."""
    # The text is wrapped where it is shown.
    console = Console(file=io.StringIO(), width=_UNWRAPPED, highlight=False)
    with console.capture() as shown:
        facts = show_offer(home, study, console)
    return facts | {"text": shown.get()}


def show_offer(home: SiteHome, study: Study, console: Console) -> dict[str, Any]:
    """Explain a study that is offered to a site, which may not take part in it; return what was said."""
    taking_part = home.settings.name in study.contract.roster.names
    facts = terms(home, study) if taking_part else describe(study)
    show_facts(facts, console)
    spent = spent_on(home, study)
    return facts | {
        "refusals": [reason.words for reason in why_not(home, study, approving=True)],
        "own_fingerprint": home.card().fingerprint,
        "approved": spent is not None and not spent.revoked,
    }


def show_site(facts: dict[str, Any], console: Console) -> None:
    """Print the report of a site on the terminal."""
    console.print(Text(f"Site {facts['site']}", style="bold"))
    for warning in facts["warnings"]:
        show_paragraph(f"Warning: {warning}.", console)
    if facts["data"] is not None:
        show_heading("Data", console)
        for words in _data_words(facts):
            show_paragraph(words, console)
        show_heading("Participants", console)
        for words in _enrolment_words(facts):
            show_paragraph(words, console)
    if facts["problems"]:
        show_heading("Problems with the data", console)
        for kind, fatal in (("cannot be used", True), ("note", False)):
            for words in _problem_words(facts, fatal=fatal):
                # Not wrapped: a path in two pieces cannot be copied.
                console.print(Text(f"  {kind}: {words}"), soft_wrap=True)
    if facts["study"] is not None:
        show_heading(f"What would leave this site for '{printable(facts['study']['title'])}'", console)
        show_releases(facts["study"], console)
    show_heading("Privacy cost", console)
    for words in _cost_words(facts):
        show_paragraph(words, console)
    if "approval" in facts:
        show_heading("Approval", console)
        for words in _approval_words(facts["approval"]):
            show_paragraph(words, console)


def _problem_words(facts: dict[str, Any], *, fatal: bool) -> list[str]:
    """Return the problems of the data, each kind once: a column missing from a table affects every row."""
    return told_once((one["alike"], one["what"]) for one in facts["problems"] if one["fatal"] == fatal)


def not_shown(facts: dict[str, Any]) -> list[str]:
    """Return the obstacles; several that :func:`show_site` printed as problems of the data are counted."""
    shown = [words for words in _problem_words(facts, fatal=True) if words in facts["obstacles"]]
    if len(shown) < 2:
        return list(facts["obstacles"])
    others = [words for words in facts["obstacles"] if words not in shown]
    return [*others, f"{len(shown):,} problems with the data, listed above"]


def _data_words(facts: dict[str, Any]) -> Iterator[str]:
    data = facts["data"]
    if data["kind"] == "table":
        columns = "".join(f", {width} in each row" for width in data["grids"])
        yield f"{facts['folder']}: {KINDS['table']}. {data['people']:,} participants{columns}."
        return
    count = f"{data['people']:,} participants, {data['recordings']:,} runs"
    yield f"{facts['folder']}: {KINDS[data['kind']]}. {count}."
    if data["people_with_several"]:
        yield (
            f"Participants with several runs: {data['people_with_several']:,}. Their runs are combined, and "
            "each participant is protected as a whole."
        )
    if data["timepoints"]:
        shortest, middle, longest = data["timepoints"]
        if shortest == longest:
            yield f"Time points per run: {shortest:,}."
        else:
            yield f"Time points per run: {shortest:,} to {longest:,}, median {middle:,.0f}."
    grids = "; ".join(f"{grid} ({count:,} runs)" for grid, count in data["grids"].items())
    if grids:
        yield f"Each time point has {grids}."
    if data["repetition_times"]:
        yield f"Repetition times (TR): {', '.join(f'{tr:g} s' for tr in data['repetition_times'])}."
        if data["without_repetition_time"]:
            yield f"Runs without a known TR: {data['without_repetition_time']:,}."


def _enrolment_words(facts: dict[str, Any]) -> Iterator[str]:
    enrolment = facts["enrolment"]
    if enrolment is None:
        yield (
            f"No enrolment yet: all {facts['data']['people']:,} participants found would take part. "
            "`capedjica site enrol` fixes the list and excludes participants whose data are unusable."
        )
        return
    yield (
        f"{enrolment['people']:,} participants enrolled on {enrolment['when']}; "
        f"{len(enrolment['left_out']):,} excluded for the reasons in enrolled.toml. The number enrolled is "
        "public, the names are not."
    )
    if enrolment["selection_changed"]:
        yield (
            "The kind or pattern in [data] of site.toml changed since. Those of the enrolment apply until "
            "`capedjica site enrol --again`."
        )
    if enrolment["missing"]:
        yield (
            f"Of these, {len(enrolment['missing']):,} cannot be found any more and would count as zero: "
            f"{', '.join(map(printable, enrolment['missing']))}."
        )
    if enrolment["withdrawn"]:
        yield (
            f"Of these, {len(enrolment['withdrawn']):,} withdrew their consent: their data are not read, "
            "and they count as zero."
        )


def _cost_words(facts: dict[str, Any]) -> Iterator[str]:
    yield from _limit_words(facts)
    if facts["study"] is None:
        yield "To see the cost of a study, give it with --study."
    elif facts["study"]["own_epsilon"] is not None:
        said = facts["study"]["privacy"]["guarantee"]
        yield from filter(None, (said["whole_person"], said["enrolled_once"]))
    yield "This check spent nothing."


def _limit_words(facts: dict[str, Any]) -> Iterator[str]:
    """Yield sentences about the site's limits, the budget spent, and what would remain after a study."""
    limits, study = facts["limits"], facts["study"]
    spent = "unlimited" if limits["spent_epsilon"] is None else f"epsilon {round_up(limits['spent_epsilon'])}"
    yield (
        f"This site allows epsilon {limits['study_epsilon']:g} per study and {limits['total_epsilon']:g} for "
        f"all studies in total, at delta {short(limits['delta'])}. Spent so far: {spent}."
    )
    if study is None:
        return
    if study["own_epsilon"] is None:
        yield f"{NOT_FROM_THE_AGGREGATOR} The ledger charges this study as unlimited."
        return
    after = study["epsilon_afterwards"]
    together = "unlimited" if after is None else f"epsilon {round_up(after)} at most"
    yield (
        f"This study may cost each {study['privacy']['unit']} here at most epsilon "
        f"{round_up(study['own_epsilon'])}. The total of all studies would then be {together}. "
        f"{_left_words(study['epsilon_left'])}"
    )


def _left_words(left: float | None) -> str:
    if left is None:
        return "That is more than the site allows: a run would be refused."
    context = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)
    shown = float(context.create_decimal(decimal.Decimal(left)))
    if shown < _NEXT_TO_NOTHING:
        return "Almost nothing would be left for later studies."
    return f"Later studies could then spend epsilon {shown:.4g} (epsilons do not simply add up)."


def _approval_words(approval: dict[str, Any]) -> Iterator[str]:
    if not approval["approved"]:
        yield "Not approved yet." + (
            " This site automatically approves studies within its limits when they run."
            if approval["by_itself"]
            else " `capedjica site approve` shows the terms of the study and approves it."
        )
        return
    yield (
        "Approved."
        if approval["when"] is None
        else f"Approved on {approval['when']}, with the data of that time."
    )
    if approval["over"]:
        yield f"It has finished, with {counted(approval['releases'], 'release')}."
    elif approval["releases"]:
        n_made = approval["releases"]
        yield f"The run has started: {counted(n_made, 'release')} {'was' if n_made == 1 else 'were'} made."
    elif approval["when"] is not None and not approval["changed"]:
        yield "The data have not changed since."
    for changed in approval["changed"]:
        yield f"But {changed}."
