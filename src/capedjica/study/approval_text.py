"""Approval text of a study: sites, analyses, releases, privacy cost and what happens if a site is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from capedjica.data.centres import APPROXIMATE, is_table
from capedjica.data.features import FeatureTable
from capedjica.mechanisms.block import BLOCK_WORDS
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.wording import round_up
from capedjica.study.analyses import provider
from capedjica.study.study_file import Study, StudyStep
from capedjica.tools.terminal import show_heading, show_paragraph, show_table
from capedjica.tools.text import printable

_SUMS: Final = (
    "Participants' data do not leave their site. Each site sends releases to the aggregator, the computer "
    "that adds up the messages of the sites. A release is a sum over the participants of the site: each "
    "participant's numbers, clipped to a fixed length so that no participant counts for much more than "
    "another{hidden}."
)
_HIDDEN: Final = {
    "cape": "; plus noise drawn by the site; plus a mask: random numbers that hide everything else and "
    "cancel only when the messages of all sites are added up",
    "conventional": "; plus noise drawn by the site, enough to protect its participants without the noise "
    "of other sites",
    "local": "; plus noise drawn by the site. Only site {alone} releases anything",
    "pooled": ". The sums are sent AS THEY ARE; the aggregator is trusted, and adds noise to the results",
    "none": ". The sums are sent AS THEY ARE, and no noise is ever added",
}
_MASK_WORDS: Final = (
    "Before the releases, each site also sends messages to agree on the masks: public keys, encrypted shares "
    "of keys, and random numbers, as many as are released later ({numbers:,} in total, as planned); 5 "
    "messages for about every {block:,} numbers. They are generated without reading any participant's data."
)
_CLAIM: Final = (
    "{what}: {provider} claims that each participant's numbers are computed from that participant's data "
    "alone, and that those of two participants are never further apart than {spread:.4g} (spread) times the "
    "length to which each is clipped, {clip:.4g} (clip). Sites enforce that length but neither claim: if "
    "either is false, so is the cost stated below."
)
_ENFORCED: Final = (
    "How often each is released, and with what share of the budget, is only planned. A site enforces that "
    "nothing else is released, and it enforces the total: it refuses a release that would exceed the limit "
    "below."
)
_NOT_ENFORCED: Final = (
    "How often each is released is only planned. A site enforces that nothing else is released, but not how "
    "often."
)
_GREETINGS: Final = (
    "At any time, the aggregator may ask a site for its status. The site then sends that it is online, how "
    "much of this study's budget it has spent, and a signed checksum of its ledger (its record of every "
    "release); or why it refuses, in words that do not depend on any participant's data."
)


def describe(study: Study) -> dict[str, Any]:
    """Return the facts shown by :func:`show_study`, for use by programs."""
    contract, features = study.contract, study.content.features
    return {
        "title": study.content.title,
        "hash": study.hash.hex(),
        "sites": _sites(contract),
        "people": study.n_subjects,
        "analyses": [_analysis(step) for step in study.steps],
        "features": msgspec.to_builtins(features) | {"words": feature_words(features)},
        "releases": _releases(study),
        "privacy": _privacy(study),
        "lost_sites": _lost_sites(contract),
    }


def _analysis(step: StudyStep) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(step.table)
    return table | {
        "name": step.name,
        "provider": provider(step.table.kind),
        "summary": step.table.summary(step.setting),
        "words": step.table.words(step.setting),
    }


def _sites(contract: Contract) -> list[dict[str, Any]]:
    budgets = contract.epsilon if contract.private else (None,) * len(contract.subjects)
    return [
        {
            "name": site.name,
            "people": contract.enrolled[site.name],
            "epsilon": budget,
            "fingerprint": site.fingerprint,
        }
        for site, budget in zip(contract.roster.sites, budgets, strict=True)
    ]


def _releases(study: Study) -> list[dict[str, Any]]:
    stages = study.contract.stages
    return [
        {
            "what": stages[number].query.label,
            "meaning": step.table.meanings.get(stage.query.label, ""),
            "times": stages[number].count,
            "numbers": stages[number].query.size,
            "clip": stages[number].query.clip,
            "spread": stages[number].query.sensitivity() / stages[number].query.clip,
            "provider": provider(step.table.kind),
        }
        for step in study.steps
        for number, stage in zip(step.stages, step.analysis.stages(), strict=True)
    ]


def _privacy(study: Study) -> dict[str, Any]:
    contract, guarantee = study.contract, study.guarantee()
    whom, unit = guarantee.adversary, guarantee.unit
    return {
        "mechanism": contract.mechanism,
        "epsilon": guarantee.epsilon if guarantee.private else None,
        "delta": contract.delta,
        "neighbour": unit.neighbour,
        "units_per_subject": unit.per_subject,
        "unit": unit.named(),
        "subject_epsilon": guarantee.person_epsilon if guarantee.private else None,
        "against": whom.against,
        "not_against": whom.not_against,
        "private": contract.private,
        "epsilon_at_two_sites": guarantee.two_sites_epsilon,
        "guarantee": guarantee.as_dict(),
        "protects": contract.protects,
        "n_colluding": contract.roster.n_colluding if contract.mechanism == "cape" else None,
        "releasing_sites": list(contract.participants),
    }


def _lost_sites(contract: Contract) -> dict[str, Any]:
    n_sites, needed = len(contract.subjects), 1
    if contract.mechanism == "cape":
        needed = contract.roster.threshold
        then = f"{needed} of the {n_sites} sites must stay to the end; with fewer the study stops."
    elif contract.mechanism == "local":
        then = f"Without site {contract.alone} the study stops; the others are not needed."
    else:
        then = "The study continues without it."
    return {"needed": needed, "then": then, "reserve": contract.reserve}


# Terminal output


def show_study(study: Study, console: Console) -> None:
    """Print the approval text of a study on the terminal."""
    show_facts(describe(study), console)


def show_facts(facts: dict[str, Any], console: Console) -> None:
    """Print the facts that :func:`describe` returned.

    If the facts contain ``own``, the text is addressed to the site of that ``name``: it states that site's
    ``guarantee``, followed by its ``words`` about the cost.
    """
    console.print(Text(printable(facts["title"]), style="bold"))
    sections: dict[str, Callable[[dict[str, Any], Console], None]] = {
        "Who takes part": _show_sites,
        "What is computed": _show_analysis,
        "What leaves each site": show_releases,
        "What it costs each participant" + (" here" if "own" in facts else ""): _show_privacy,
        "If a site is lost": _show_lost_sites,
        "The study's hash": _show_hash,
    }
    for heading, show in sections.items():
        show_heading(heading, console)
        show(facts, console)


def _show_sites(facts: dict[str, Any], console: Console) -> None:
    show_paragraph(
        f"{len(facts['sites'])} sites (hospitals or labs) with {facts['people']:,} participants in total. "
        "The numbers were fixed before the study was approved.",
        console,
    )
    for site in facts["sites"]:
        own = f", at most epsilon {round_up(site['epsilon'])}" if _budgets_differ(facts) else ""
        here = " (this site)" if facts.get("own", {}).get("name") == site["name"] else ""
        show_paragraph(f"{site['name']}{here}: {site['people']:,} participants{own}", console, "bold")
        console.print(Text(f"    {site['fingerprint']}"), soft_wrap=True)
    show_paragraph(
        "Under each name is the fingerprint of the site's key, by which the other sites verify its messages. "
        "Compare it by phone or in person with the fingerprint that the site itself reads out: an attacker "
        "who substituted another key could take part in the site's name.",
        console,
    )


def _show_analysis(facts: dict[str, Any], console: Console) -> None:
    analyses = facts["analyses"]
    if len(analyses) > 1:
        show_paragraph(
            f"{len(analyses)} analyses, one after the other. Later analyses may use what earlier ones "
            "publish. The cost stated below is that of all analyses in total.",
            console,
        )
    for analysis in analyses:
        if len(analyses) > 1:
            show_paragraph(f"{analysis['name']}:", console, "bold")
        for paragraph in analysis["words"]:
            show_paragraph(paragraph, console)
        if analysis["provider"]:
            show_paragraph(
                f"Computed by {analysis['provider']}, which is not part of capedjica: take this into "
                "account before you approve. The cost stated below holds only if the claims of this package "
                "hold; they are listed with its releases.",
                console,
            )
    for paragraph in facts["features"]["words"]:
        show_paragraph(paragraph, console)


def feature_words(features: FeatureTable) -> list[str]:
    """Return sentences about the features every site computes from a scan, or the table columns it reads."""
    n_features, table = features.n_features or 0, msgspec.to_builtins(features)
    mask = "the MNI152 brain mask" if features.mask is None else f"the mask {features.mask!r}"
    size = "" if features.voxel_size is None else f" ({features.voxel_size:g} mm)"
    cleaning = _cleaning_words(table)
    unchanged = "" if cleaning else " and are used as they are"
    made = {
        "columns": f"Each scan is a table. Its columns are the features{unchanged}.",
        "atlas": f"Each scan is a series of images. The features are the {n_features:,} regions of the atlas "
        f"{features.atlas!r}.",
        "voxels": f"Each scan is a series of images. The features are the {n_features:,} voxels of "
        f"{mask}{size}. Only their smooth part is used; this choice does not depend on any participant's "
        "data.",
        "table": "Each site has one table with a row per participant. The features are the columns "
        f"{', '.join(map(repr, features.columns))}.",
    }
    words = [made[features.kind], *cleaning]
    if features.kind == "columns" and features.atlas is not None:
        table_of_centres = is_table(features.atlas)
        source = "table of centres" if table_of_centres else "atlas"
        words.append(
            f"The columns are the {n_features:,} regions of the {source} {features.atlas!r}, in its order. "
            f"The {source} is only used to locate the results in the brain."
        )
        if table_of_centres:
            words.append(APPROXIMATE)
    hashes = {table[key]: table[f"{key}_sha256"] for key in ("atlas", "mask") if table[key]}
    if hashes:
        listed = "; ".join(f"{name!r} has the SHA-256 {digest}" for name, digest in hashes.items())
        words.append(f"Every site uses the same file and refuses any other: {listed}.")
    if features.image_shape is not None:
        height, width = features.image_shape
        words.append(
            f"The columns are the pixels of an image, {height} by {width}. Only their smooth part is used; "
            "this choice does not depend on any participant's data."
        )
    return words


def _cleaning_words(features: dict[str, Any]) -> list[str]:
    """Return sentences about the preprocessing of each scan; an empty list if there is none."""
    steps = {
        "smoothing_fwhm": "smoothed (FWHM {:g} mm)",
        "detrend": "detrended",
        "confounds": "cleaned of fMRIPrep confounds by regression ({})",
        "high_pass": "high-pass filtered ({:g} Hz)",
        "low_pass": "low-pass filtered ({:g} Hz)",
        "standardize": "divided by its standard deviation, feature by feature",
    }
    values = features | {"confounds": ", ".join(features["confounds"])}
    done = ", ".join(words.format(values[key]) for key, words in steps.items() if features[key])
    space = [f"Scans must be in the template space {features['space']}."] if features["space"] else []
    first = "Each scan" if features["kind"] == "columns" else "Before that, each scan"
    return space + [f"{first} is {done}, independently of all other scans."] * bool(done)


def show_releases(facts: dict[str, Any], console: Console) -> None:
    """Print what leaves each site, given the facts of :func:`describe`."""
    privacy, releases = facts["privacy"], facts["releases"]
    hidden = _HIDDEN[privacy["mechanism"]].format(alone=privacy["releasing_sites"][0])
    show_paragraph(_SUMS.format(hidden=hidden), console)
    columns = ["release", "times, as planned", "numbers each"]
    rows = [[row["what"], f"{row['times']:,}", f"{row['numbers']:,}"] for row in releases]
    console.print()
    show_table(columns, rows, console)
    for row in releases:
        if row["meaning"]:
            show_paragraph(f"{row['what']}: {row['meaning']}.", console, "dim")
    for row in releases:
        if row["provider"]:
            show_paragraph(_CLAIM.format(**row), console)
    console.print()
    show_paragraph(_ENFORCED if privacy["protects"] else _NOT_ENFORCED, console)
    if privacy["mechanism"] == "cape":
        numbers = sum(row["times"] * row["numbers"] for row in releases)
        show_paragraph(_MASK_WORDS.format(numbers=numbers, block=BLOCK_WORDS), console)
    show_paragraph(_GREETINGS, console)
    show_paragraph(
        "Nothing else leaves the site. `capedjica site outbox` lists the releases that have left it; "
        "`capedjica plan` states how much noise each of them has.",
        console,
    )


def _show_privacy(facts: dict[str, Any], console: Console) -> None:
    privacy, own = facts["privacy"], facts.get("own", {})
    _show_guarantee(own.get("guarantee", privacy["guarantee"]), _other_limits(facts), console)
    if privacy["protects"]:
        show_paragraph(
            "Each site charges every release to its own ledger before the release leaves, and refuses a "
            "release that would exceed this limit or the site's own limits.",
            console,
        )
    else:
        show_paragraph(
            "A site takes part only if its own settings allow it (allow_unprotected in its site.toml), and "
            "its ledger charges every release as unlimited.",
            console,
        )
    for words in own.get("words", ()):
        show_paragraph(words, console)


def _show_guarantee(said: dict[str, Any], other_limits: str, console: Console) -> None:
    show_paragraph(f"{said['protected']}{other_limits}", console, "bold")
    if not said["holds"]:
        return
    for words in (said["odds"], said["bet"], said["whole_person"], said["holds"], said["does_not_hold"]):
        if words:
            show_paragraph(words, console)
    show_paragraph("This holds as long as:", console)
    for words in said["rests_on"]:
        show_paragraph(f"- {words}", console)
    for words in said["caveats"]:
        show_paragraph(words, console)


def _other_limits(facts: dict[str, Any]) -> str:
    if not _budgets_differ(facts):
        return ""
    if "own" in facts:
        return " Other sites have their own limits, given above."
    return " Some sites have a lower limit, given above."


def _budgets_differ(facts: dict[str, Any]) -> bool:
    return len({site["epsilon"] for site in facts["sites"]}) > 1


def _show_lost_sites(facts: dict[str, Any], console: Console) -> None:
    show_paragraph(facts["lost_sites"]["then"], console)
    if not facts["privacy"]["protects"]:
        show_paragraph(
            "A release that was sent but could not be completed is requested again, and the site sends it "
            "again. No limit applies: see above.",
            console,
        )
        return
    show_paragraph(
        "A release that was sent but could not be completed stays charged. It is requested again, with fresh "
        f"noise: a fraction {facts['lost_sites']['reserve']:.4g} of the budget is held in reserve for this. "
        "When the reserve is spent, the rest of the budget is divided among the remaining releases, which "
        "become noisier. The limit above is never exceeded.",
        console,
    )


def _show_hash(facts: dict[str, Any], console: Console) -> None:
    console.print(Text(f"  {facts['hash']}"), soft_wrap=True)
    show_paragraph(
        "A checksum of every value in study.toml: parties with the same hash agree on all of the above. A "
        "site approves exactly this hash (`capedjica site approve`). Any change makes it a different study.",
        console,
    )
