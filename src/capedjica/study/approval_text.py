"""A study explained to those who take part: who, what, what leaves each site, what it costs, what if."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from capedjica.mechanisms.block import BLOCK_WORDS
from capedjica.mechanisms.contract import Contract
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.neighbour import ProtectedUnit
from capedjica.privacy.statement import round_up
from capedjica.study.planned_releases import participants
from capedjica.study.study_file import AnalysisTable, Study
from capedjica.tools.text import printable, show_heading, show_paragraph, show_table

METHODS: Final = {
    "subject": "The default method (one short vector per person and release)",
    "paper": "The paper's method (capePCA, then capeDJICA)",
}
_METHOD_WORDS: Final = {
    "subject": "The method is 'subject', the default: each person enters every step with one short vector.",
    "paper": "The method is 'paper': capePCA, which finds the directions in which scans vary, and capeDJICA, "
    "which finds the networks in them, as their authors published them.",
}
# What a release holds, by the label of its query.
MEANINGS: Final = {
    "subspace": "in which directions the scans vary most, every person counted alike",
    "log-covariance": "how strongly the scans vary along these directions, and which vary together",
    "log-covariance, whitened": "the same once more, after what all have in common was taken out",
    "rotation": "in which way to turn the networks so that they become more independent of each other",
    "second moments (PCA)": "how strongly the features vary, and which vary together",
    "gradients of W and b": "in which way to change the networks so that they become more independent",
}
_SUMS: Final = (
    "Scans never leave. Releases go to the aggregator, the computer that adds up what the sites send. A "
    "release is a sum over the people of the site: each person's numbers, shortened to a fixed length, so "
    "that nobody counts for much more than others{hidden}."
)
_HIDDEN: Final = {
    "cape": "; plus noise that the site draws; plus a mask, random numbers that hide all the rest and cancel "
    "only when the messages of all sites are added up",
    "conventional": "; plus noise that the site draws, enough to protect its people without others' help",
    "local": "; plus noise that the site draws. Only site {alone} releases anything",
    "pooled": ". They go there AS THEY ARE; the aggregator is trusted, and adds noise to the results",
    "none": ". They go there AS THEY ARE, and no noise is added by anyone",
}
_MASKS: Final = (
    "Before, to agree on the masks: public keys, encrypted pieces of keys, and random numbers, as many as "
    "are released later ({numbers:,} in all); 5 messages for every {block:,} numbers or so. They are made "
    "without looking at a scan."
)
_GREETINGS: Final = (
    "Whenever it is asked: that it is there, which part of this study's budget it has spent, and a signed "
    "checksum of its ledger (its record of all that ever left); or why it refuses, in words that depend on "
    "no scan."
)


def describe(study: Study) -> dict[str, Any]:
    """Return everything that :func:`show_study` says, for programs."""
    contract = study.contract
    return {
        "title": study.content.title,
        "hash": study.hash.hex(),
        "sites": _sites(contract),
        "people": study.n_subjects,
        "analysis": {
            field: getattr(study.content.analysis, field) for field in AnalysisTable.__struct_fields__
        },
        "features": msgspec.to_builtins(study.content.features),
        "releases": _releases(contract),
        "privacy": _privacy(contract),
        "lost_sites": _lost_sites(contract),
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


def _releases(contract: Contract) -> list[dict[str, Any]]:
    return [
        {
            "what": stage.query.label,
            "meaning": MEANINGS.get(stage.query.label, ""),
            "times": stage.count,
            "numbers": stage.query.size,
        }
        for stage in contract.stages
    ]


def _privacy(contract: Contract) -> dict[str, Any]:
    whom, unit = contract.adversary, contract.unit
    return {
        "mechanism": contract.mechanism,
        "epsilon": max(contract.epsilon) if contract.private else None,
        "delta": contract.delta,
        "neighbour": unit.neighbour,
        "units_per_subject": unit.per_subject,
        "subject_epsilon": _subject_epsilon(contract),
        "against": whom.against,
        "not_against": whom.not_against,
        "private": contract.private,
        "epsilon_at_two_sites": _epsilon_at_two_sites(contract),
        "protects": contract.protects,
        "n_colluding": contract.roster.n_colluding if contract.mechanism == "cape" else None,
        "releasing_sites": list(participants(contract)),
    }


def _epsilon_at_two_sites(contract: Contract) -> float | None:
    """Return what the guarantee is worth to somebody who is enrolled twice: mu is twice as large.

    None where nobody is protected, and where a time point is, which is there only once.
    """
    if not contract.private or not contract.unit.is_subject:
        return None
    cap = max((contract.cap(name) for name in contract.roster.names), key=lambda cap: cap.mu2)
    return gaussian_epsilon(2 * math.sqrt(cap.mu2), cap.delta)


def _subject_epsilon(contract: Contract) -> float | None:
    """Return what the guarantee is worth to a whole subject; None where nobody is protected."""
    if not contract.private:
        return None
    if contract.unit.is_subject:
        return max(contract.epsilon)
    return contract.unit.subject_epsilon(max(contract.total_mu.values()), contract.delta)


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

    With ``own`` among the facts, to the site of that ``name``: its ``epsilon`` is the one that is told, and
    its ``words`` about the cost follow.
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
    analysis = facts["analysis"]
    show_paragraph(
        f"{analysis['n_components']} brain networks (components: parts of the brain whose activity rises and "
        "falls together), found in all scans at once by independent component analysis, which looks for "
        "signals as independent of each other as can be. A scan is a table: "
        f"{analysis['n_features']:,} numbers (voxels or regions) at each of about "
        f"{analysis['scan_length']:,} time points.",
        console,
    )
    for paragraph in feature_words(facts["features"], analysis["n_features"]):
        show_paragraph(paragraph, console)
    if analysis["image_shape"] is not None:
        height, width = analysis["image_shape"]
        show_paragraph(
            f"The columns are the pixels of an image, {height} by {width}, of which only the smooth part is "
            "used; that choice looks at nobody's data.",
            console,
        )
    show_paragraph(_METHOD_WORDS[analysis["method"]], console)


def feature_words(features: dict[str, Any], n_features: int) -> list[str]:
    """Return in words what every site makes of a scan."""
    made = {
        "columns": "A site's scans are tables, and the numbers are their columns, as they are.",
        "atlas": f"A scan is a series of images, of which the numbers are the {n_features:,} regions of the "
        f"atlas {features['atlas']!r}.",
        "voxels": f"A scan is a series of images, of which the numbers are the {n_features:,} voxels of "
        + (
            "the brain of the MNI152 template"
            if features["mask"] is None
            else f"the mask {features['mask']!r}"
        )
        + ("" if features["voxel_size"] is None else f", {features['voxel_size']:g} mm wide")
        + ", and of these only the smooth part is used; that choice looks at nobody's data.",
        "table": "A site has one table with a row per person, and the numbers are the columns "
        f"{', '.join(map(repr, features['columns']))}.",
    }
    words = [made[features["kind"]], *_cleaning_words(features)]
    hashes = {features[key]: features[f"{key}_sha256"] for key in ("atlas", "mask") if features[key]}
    if hashes:
        listed = "; ".join(f"{name!r} has the SHA-256 {digest}" for name, digest in hashes.items())
        words.append(f"Every site uses the same file, and refuses another: {listed}.")
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
    columns = ["release", "times, at most", "numbers each"]
    rows = [[row["what"], f"{row['times']:,}", f"{row['numbers']:,}"] for row in releases]
    console.print()
    show_table(columns, rows, console)
    for row in releases:
        if row["meaning"]:
            show_paragraph(f"{row['what']}: {row['meaning']}.", console, "dim")
    console.print()
    if privacy["mechanism"] == "cape":
        numbers = sum(row["times"] * row["numbers"] for row in releases)
        show_paragraph(_MASKS.format(numbers=numbers, block=BLOCK_WORDS), console)
    show_paragraph(_GREETINGS, console)
    show_paragraph(
        "Nothing else. `capedjica site outbox` lists what did leave a site, `capedjica plan` how much noise "
        "is on it.",
        console,
    )


def _show_privacy(facts: dict[str, Any], console: Console) -> None:
    privacy = facts["privacy"]
    if privacy["private"]:
        _show_guarantee(facts, console)
    else:
        why = "no noise is added" if privacy["mechanism"] == "none" else "the noise comes from a seed"
        show_paragraph(f"NOT PRIVATE: {why}. Nobody is protected.", console, "bold")
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
    for words in facts.get("own", {}).get("words", ()):
        show_paragraph(words, console)


def _show_guarantee(facts: dict[str, Any], console: Console) -> None:
    privacy, epsilon, other = facts["privacy"], facts["privacy"]["epsilon"], ""
    unit = unit_of(privacy)
    if _budgets_differ(facts):
        other = " Some sites have a lower limit, given above."
    if "own" in facts:
        epsilon, other = (
            facts["own"]["epsilon"],
            other and " Other sites have limits of their own, given above.",
        )
    show_paragraph(
        f"Each {unit.named('person')} is protected with epsilon {round_up(epsilon)} at delta "
        f"{privacy['delta']:g}, for everything together.{other}",
        console,
        "bold",
    )
    show_paragraph(f"That is: {_odds(epsilon, privacy['delta'], unit)}", console)
    show_paragraph(f"It holds against {privacy['against']}.", console)
    show_paragraph(f"It does NOT hold against {privacy['not_against']}.", console)
    show_paragraph("It rests on today's ciphers (X25519, AES) staying unbroken.", console)
    show_paragraph(more_words(privacy), console)


def more_words(privacy: dict[str, Any]) -> str:
    """Return what one person may lose beyond the guarantee: enrolled twice, or with all their time points."""
    unit = unit_of(privacy)
    if not unit.is_subject:
        return f"But {unit.holding('person')} only with epsilon {round_up(privacy['subject_epsilon'])}."
    return (
        "It is for people who are enrolled at one site. The same person at k sites has k times the mu: at "
        f"two, epsilon {round_up(privacy['epsilon_at_two_sites'])} and not {round_up(privacy['epsilon'])}. "
        "No site can see that; ask people before they are enrolled."
    )


def _budgets_differ(facts: dict[str, Any]) -> bool:
    return len({site["epsilon"] for site in facts["sites"]}) > 1


def unit_of(privacy: dict[str, Any]) -> ProtectedUnit:
    """Return what is protected."""
    return ProtectedUnit(privacy["neighbour"], privacy["units_per_subject"])


def _odds(epsilon: float, delta: float, unit: ProtectedUnit) -> str:
    """Return in words what a guarantee says."""
    chance = f"{delta:g}" if delta > 0.1 else f"1 in {round(1 / delta):,}"
    factor = "a million, which protects next to nobody"
    if epsilon < math.log(1e6):
        factor = round_up(math.exp(epsilon), 3) if epsilon < 2 else f"{math.ceil(math.exp(epsilon)):,}"
    replaced = "one person's scan" if unit.is_subject else "one time point of one person"
    return (
        f"if {replaced} were replaced by any other, no outcome, and nothing that anybody concludes "
        f"from it, would become more likely by a factor of more than {factor} (e to the power of epsilon), "
        f"but for a remainder of probability {chance} (delta)."
    )


def _show_lost_sites(facts: dict[str, Any], console: Console) -> None:
    show_paragraph(facts["lost_sites"]["then"], console)
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
