"""A study explained to those who take part: who, what, what leaves each site, what it costs, what if."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from capedjica.data.features import FeatureTable
from capedjica.mechanisms.block import BLOCK_WORDS
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.wording import round_up
from capedjica.study.analyses import provider
from capedjica.study.study_file import Study, StudyStep
from capedjica.tools.terminal import show_heading, show_paragraph, show_table
from capedjica.tools.text import printable

_SUMS: Final = (
    "Nobody's data leave their site. Releases go to the aggregator, the computer that adds up what the sites "
    "send. A release is a sum over the people of the site: each person's numbers, shortened to a fixed "
    "length, so that nobody counts for much more than others{hidden}."
)
_HIDDEN: Final = {
    "cape": "; plus noise that the site draws; plus a mask, random numbers that hide all the rest and cancel "
    "only when the messages of all sites are added up",
    "conventional": "; plus noise that the site draws, enough to protect its people without others' help",
    "local": "; plus noise that the site draws. Only site {alone} releases anything",
    "pooled": ". They go there AS THEY ARE; the aggregator is trusted, and adds noise to the results",
    "none": ". They go there AS THEY ARE, and no noise is added by anyone",
}
_MASK_WORDS: Final = (
    "Before, to agree on the masks: public keys, encrypted pieces of keys, and random numbers, as many as "
    "are released later ({numbers:,} in all, as planned); 5 messages for every {block:,} numbers or so. They "
    "are made without looking at anybody's data."
)
_CLAIM: Final = (
    "{what}: {provider} claims that each person's numbers are made of that person's data alone, and that "
    "those of two people are never further apart than {spread:.4g} (spread) times the length to which each "
    "is shortened, {clip:.4g} (clip). Sites enforce that length, and neither claim: where one is false, so "
    "is what is said of the cost."
)
_ENFORCED: Final = (
    "How often each is released, and with which part of the budget, is the plan. What a site enforces is "
    "that nothing else is released, and the total: it refuses what would go beyond the limit below."
)
_NOT_ENFORCED: Final = (
    "How often each is released is the plan. What a site enforces is that nothing else is released, and not "
    "how often."
)
_GREETINGS: Final = (
    "Whenever it is asked: that it is there, which part of this study's budget it has spent, and a signed "
    "checksum of its ledger (its record of all that ever left); or why it refuses, in words that depend on "
    "nobody's data."
)


def describe(study: Study) -> dict[str, Any]:
    """Return everything that :func:`show_study` says, for programs."""
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
        then = "The study goes on without it."
    return {"needed": needed, "then": then, "reserve": contract.reserve}


# For people


def show_study(study: Study, console: Console) -> None:
    """Explain a study on the terminal."""
    show_facts(describe(study), console)


def show_facts(facts: dict[str, Any], console: Console) -> None:
    """Explain what :func:`describe` returned.

    With ``own`` among the facts, to the site of that ``name``: its ``guarantee`` is the one that is told,
    and its ``words`` about the cost follow.
    """
    console.print(Text(printable(facts["title"]), style="bold"))
    sections: dict[str, Callable[[dict[str, Any], Console], None]] = {
        "Who takes part": _show_sites,
        "What is computed": _show_analysis,
        "What leaves each site": show_releases,
        "What it costs each person" + (" here" if "own" in facts else ""): _show_privacy,
        "If a site is lost": _show_lost_sites,
        "The study's hash": _show_hash,
    }
    for heading, show in sections.items():
        show_heading(heading, console)
        show(facts, console)


def _show_sites(facts: dict[str, Any], console: Console) -> None:
    show_paragraph(
        f"{len(facts['sites'])} sites (hospitals or labs) with {facts['people']:,} people in all. The "
        "numbers were fixed before the study was approved.",
        console,
    )
    for site in facts["sites"]:
        own = f", at most epsilon {round_up(site['epsilon'])}" if _budgets_differ(facts) else ""
        here = " (this site)" if facts.get("own", {}).get("name") == site["name"] else ""
        show_paragraph(f"{site['name']}{here}: {site['people']:,} people{own}", console, "bold")
        console.print(Text(f"    {site['fingerprint']}"), soft_wrap=True)
    show_paragraph(
        "Under each name is the fingerprint of the site's key, by which the others know its messages. "
        "Compare it by voice with what the site itself reads out: whoever could slip in another key could "
        "take part in its name.",
        console,
    )


def _show_analysis(facts: dict[str, Any], console: Console) -> None:
    analyses = facts["analyses"]
    if len(analyses) > 1:
        show_paragraph(
            f"{len(analyses)} analyses one after the other. What one publishes, later ones may use; all of "
            "them together cost what is said below.",
            console,
        )
    for analysis in analyses:
        if len(analyses) > 1:
            show_paragraph(f"{analysis['name']}:", console, "bold")
        for paragraph in analysis["words"]:
            show_paragraph(paragraph, console)
        if analysis["provider"]:
            show_paragraph(
                f"Computed by {analysis['provider']}, which is not part of capedjica: whoever approves "
                "should know it. What is said below of the cost holds only if its claims hold, which are "
                "said beside what it releases.",
                console,
            )
    for paragraph in facts["features"]["words"]:
        show_paragraph(paragraph, console)


def feature_words(features: FeatureTable) -> list[str]:
    """Return in words what every site makes of a scan, or which rows it reads."""
    n_features, table = features.n_features or 0, msgspec.to_builtins(features)
    mask = "the brain of the MNI152 template" if features.mask is None else f"the mask {features.mask!r}"
    wide = "" if features.voxel_size is None else f", {features.voxel_size:g} mm wide"
    made = {
        "columns": "A site's scans are tables, and the numbers are their columns, as they are.",
        "atlas": f"A scan is a series of images, of which the numbers are the {n_features:,} regions of the "
        f"atlas {features.atlas!r}.",
        "voxels": f"A scan is a series of images, of which the numbers are the {n_features:,} voxels of "
        f"{mask}{wide}, and of these only the smooth part is used; that choice looks at nobody's data.",
        "table": "A site has one table with a row per person, and the numbers are the columns "
        f"{', '.join(map(repr, features.columns))}.",
    }
    words = [made[features.kind], *_cleaning_words(table)]
    if features.kind == "columns" and features.atlas is not None:
        words.append(
            f"The columns are the {n_features:,} regions of the atlas {features.atlas!r}, in its order; it "
            "only gives places to the results."
        )
    hashes = {table[key]: table[f"{key}_sha256"] for key in ("atlas", "mask") if table[key]}
    if hashes:
        listed = "; ".join(f"{name!r} has the SHA-256 {digest}" for name, digest in hashes.items())
        words.append(f"Every site uses the same file, and refuses another: {listed}.")
    if features.image_shape is not None:
        height, width = features.image_shape
        words.append(
            f"The columns are the pixels of an image, {height} by {width}, of which only the smooth part is "
            "used; that choice looks at nobody's data."
        )
    return words


def _cleaning_words(features: dict[str, Any]) -> list[str]:
    """Return in words what is done to each scan; nothing where nothing is."""
    steps = {
        "smoothing_fwhm": "smoothed by {:g} mm",
        "detrend": "freed of a straight line",
        "confounds": "freed of what fMRIPrep found to be noise ({})",
        "high_pass": "freed of what changes more slowly than {:g} Hz",
        "low_pass": "freed of what changes faster than {:g} Hz",
        "standardize": "divided by its standard deviation, feature by feature",
    }
    values = features | {"confounds": ", ".join(features["confounds"])}
    done = ", ".join(words.format(values[key]) for key, words in steps.items() if features[key])
    space = [f"Scans must be in the template space {features['space']}."] if features["space"] else []
    return space + [f"Before that, each scan is {done}: each by itself, never with others."] * bool(done)


def show_releases(facts: dict[str, Any], console: Console) -> None:
    """Tell what leaves each site, as :func:`describe` has it."""
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
        "Nothing else. `capedjica site outbox` lists the releases that did leave a site, `capedjica plan` "
        "how much noise is on them.",
        console,
    )


def _show_privacy(facts: dict[str, Any], console: Console) -> None:
    privacy, own = facts["privacy"], facts.get("own", {})
    _show_guarantee(own.get("guarantee", privacy["guarantee"]), _other_limits(facts), console)
    if privacy["protects"]:
        show_paragraph(
            "Each site counts what it spends in a ledger of its own, before anything leaves, and refuses "
            "what would go beyond this or beyond its own limits.",
            console,
        )
    else:
        show_paragraph(
            "A site takes part only if its own settings say so (allow_unprotected in its site.toml), and its "
            "ledger counts every release as unlimited.",
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
        return " Other sites have limits of their own, given above."
    return " Some sites have a lower limit, given above."


def _budgets_differ(facts: dict[str, Any]) -> bool:
    return len({site["epsilon"] for site in facts["sites"]}) > 1


def _show_lost_sites(facts: dict[str, Any], console: Console) -> None:
    show_paragraph(facts["lost_sites"]["then"], console)
    if not facts["privacy"]["protects"]:
        show_paragraph(
            "A release that was sent and then could not be finished is asked again, and the site sends it "
            "again. No limit holds for that: see above.",
            console,
        )
        return
    show_paragraph(
        "A release that was sent and then could not be finished stays charged. It is asked again, with new "
        f"noise: {facts['lost_sites']['reserve']:.4g} of the budget is held back for that, and beyond it "
        "what is left is spread over what is still to come, which becomes noisier. The limit above is never "
        "exceeded.",
        console,
    )


def _show_hash(facts: dict[str, Any], console: Console) -> None:
    console.print(Text(f"  {facts['hash']}"), soft_wrap=True)
    show_paragraph(
        "A checksum over every value of study.toml: those with the same hash agree on all of the above. A "
        "site approves exactly this (`capedjica site approve`); any change makes it another study.",
        console,
    )
