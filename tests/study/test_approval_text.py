"""A study explained: every number of it is the study's own, and the words fit what it does."""

import io
import json
import math
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from capedjica.coordinator.planning.plan import plan_study
from capedjica.coordinator.planning.plan_text import show_plan
from capedjica.privacy.wording import round_up
from capedjica.study.analyses import IcaTable
from capedjica.study.analyses.pca import PcaTable
from capedjica.study.approval_text import describe, show_facts, show_study
from capedjica.study.study_file import Study
from capedjica.tools.terminal import show_table
from capedjica.tools.text import printable
from tests.support.drafts import TABLE, draft, every_kind


def shown(study, width=80, show=show_study):
    out = io.StringIO()
    show(study, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def words(study):
    return " ".join(shown(study).split())


def test_all_that_matters_is_there():
    study = Study(draft(privacy={"epsilon": 0.7, "reserve": 0.125}, analysis={"image_shape": (1, 12)}))
    text = words(study)
    for site in study.contract.roster.sites:
        assert f"{site.name}: {study.contract.enrolled[site.name]} participants {site.fingerprint}" in text
    for stage in study.contract.stages:
        assert f"{stage.query.label} {stage.count:,} {stage.query.size:,}" in text
        assert f"{stage.query.label}: {IcaTable.meanings[stage.query.label]}." in text
    numbers = sum(stage.count * stage.query.size for stage in study.contract.stages)
    for fact in (
        "100 participants in total",
        "4 brain networks",
        "12 features (voxels or regions) at each of about 60 time points",
        "an image, 1 by 12",
        f"({numbers:,} in total, as planned)",
        "epsilon 0.7 at delta 1e-5",
        "a factor of more than 2.02",
        "1 in 100,000 (delta)",
        "colludes with any 1 of the 3 other sites",
        "3 of the 4 sites must stay to the end",
        "0.125 of the budget",
        study.hash.hex(),
    ):
        assert fact in text, fact


def test_every_stage_of_every_analysis_has_words():
    for content in every_kind():
        study = Study(content)
        assert not study.problems()
        for release in describe(study)["releases"]:
            assert release["meaning"], f"say in meanings what '{release['what']}' releases"


def test_the_factor_is_never_understated():
    for epsilon in (0.01, 0.5, 1.0, 2.0, 3.0, 8.0, 13.0):
        text = words(Study(draft(privacy={"epsilon": epsilon})))
        factor = float(re.search(r"a factor of more than ([\d,.]+)", text)[1].replace(",", ""))
        assert math.exp(epsilon) <= factor <= math.exp(epsilon) * 1.15
    text = words(Study(draft(privacy={"epsilon": 1000.0})))
    assert "by a factor of more than 10^435 (e to" in text
    assert "offers practically no protection" in text


@pytest.mark.parametrize(
    ("privacy", "there", "not_there"),
    [
        ({}, ["plus a mask", "its own ledger"], ["AS THEY ARE", "NOT PRIVATE"]),
        (
            {"mechanism": "conventional"},
            [
                "enough to protect its participants without the noise of other sites",
                "colludes with all other sites",
            ],
            ["mask", "AS THEY ARE"],
        ),
        (
            {"mechanism": "local"},
            ["Only site site-2 releases anything", "Without site site-2 the study stops"],
            ["mask", "AS THEY ARE"],
        ),
        (
            {"mechanism": "pooled"},
            [
                "AS THEY ARE; the aggregator is trusted",
                "It does NOT hold against the aggregator",
                "allow_unprotected",
                "charges every release",
            ],
            ["mask", "refuses a release that would exceed"],
        ),
        (
            {"mechanism": "none", "epsilon": None},
            ["AS THEY ARE, and no noise", "NOT PRIVATE: no noise is added", "allow_unprotected"],
            ["mask", "is protected with epsilon", "This guarantee holds against"],
        ),
        (
            {"insecure_noise": True},
            ["NOT PRIVATE: the noise comes from a seed", "allow_unprotected"],
            ["is protected with epsilon", "This guarantee holds against"],
        ),
    ],
    ids=str,
)
def test_the_words_fit_the_mechanism(privacy, there, not_there):
    text = words(Study(draft(privacy=privacy)))
    for words_ in there:
        assert words_ in text, words_
    for words_ in not_there:
        assert words_ not in text, words_


UNPROTECTED = ({"mechanism": "none", "epsilon": None}, {"insecure_noise": True}, {"mechanism": "pooled"})


@pytest.mark.parametrize("privacy", [{}, {"mechanism": "local"}, *UNPROTECTED], ids=str)
def test_a_limit_is_promised_only_where_a_site_enforces_one(privacy):
    text = words(Study(draft(privacy=privacy)))
    protects = privacy not in UNPROTECTED
    assert "release times, as planned numbers each" in text
    for promise in (
        "is held in reserve for this",
        "with fresh noise",
        "The limit above is never exceeded.",
        "it enforces the total: it refuses a release that would exceed the limit below",
    ):
        assert (promise in text) == protects, promise
    assert ("No limit applies" in text) == (not protects)
    assert "is only planned." in text


def test_nobody_reads_of_scans_where_there_are_none():
    for content in every_kind():
        study = Study(content)
        text = words(study) + " ".join(shown(plan_study(study), show=show_plan).split())
        assert "Participants' data do not leave their site." in text
        assert "without reading any participant's data" in text
        if content.features.kind == "table":
            assert not re.search(r"\bscans?\b", text, re.IGNORECASE)
    rows = msgspec.structs.replace(draft(), features=TABLE, analyses=(PcaTable(n_components=1, clip=9.0),))
    text = words(Study(rows))
    assert "1 principal component: the direction of largest variation of 3 features" in text
    assert "scan" not in text


def test_columns_are_used_as_they_are_only_where_nothing_is_done_to_them():
    assert "Its columns are the features and are used as they are." in words(Study(draft()))
    text = words(Study(draft(features={"standardize": True})))
    assert "as they are" not in text
    assert (
        "Its columns are the features. Each scan is divided by its standard deviation, feature by feature"
        in text
    )


def test_one_of_a_thing_is_told_as_one():
    rows = msgspec.structs.replace(draft(), features=TABLE, analyses=(PcaTable(n_components=1, clip=9.0),))
    plan = " ".join(shown(plan_study(Study(rows)), show=show_plan).split())
    assert "1 principal component of 3 features (capePCA)." in plan
    assert "4 sites, 100 participants; 1 release planned." in plan


def test_where_one_site_works_alone_its_people_are_those_who_count():
    study = Study(draft(privacy={"mechanism": "local"}))
    assert study.contract.participants == {"site-2": 30}
    assert Study(draft()).contract.participants == study.contract.enrolled
    assert "1 site, 30 participants; " in " ".join(shown(plan_study(study), show=show_plan).split())


def test_limits_of_their_own_are_shown_at_the_sites():
    text = words(Study(draft(site_2=0.5)))
    assert "site-2: 30 participants, at most epsilon 0.5" in text
    assert "Some sites have a lower limit, given above." in text
    assert "at most epsilon" not in words(Study(draft()))


def test_a_site_is_told_its_own_limit():
    study = Study(draft(site_2=0.5))
    facts = describe(study)
    guarantee = study.contract.guarantee("site-2").as_dict()
    own = {"name": "site-2", "guarantee": guarantee, "words": ["It has spent nothing."]}
    text = " ".join(shown(facts | {"own": own}, show=show_facts).split())
    assert "site-2 (this site): 30 participants, at most epsilon 0.5" in text
    assert text.count("(this site)") == 1
    assert (
        "is protected with epsilon 0.5 at delta 1e-5, for all releases in total. Other sites have their own"
        in text
    )
    assert "a factor of more than 1.65" in text
    assert "It has spent nothing." in text


def test_the_dictionary_says_the_same():
    study = Study(draft(site_2=0.5))
    facts = json.loads(json.dumps(describe(study), allow_nan=False))
    assert facts["hash"] == study.hash.hex()
    assert facts["people"] == 100
    assert facts["sites"][1] == {
        "name": "site-2",
        "people": 30,
        "epsilon": 0.5,
        "fingerprint": study.contract.roster.sites[1].fingerprint,
    }
    assert [(row["what"], row["times"], row["numbers"]) for row in facts["releases"]] == [
        (stage.query.label, stage.count, stage.query.size) for stage in study.contract.stages
    ]
    assert facts["privacy"]["against"] == study.contract.adversary.against
    assert facts["privacy"]["not_against"] == study.contract.adversary.not_against
    assert facts["privacy"]["neighbour"] == "subject"
    assert facts["lost_sites"]["needed"] == study.contract.roster.threshold
    json.dumps(describe(Study(draft(privacy={"mechanism": "none", "epsilon": None}))), allow_nan=False)


# The terminal


def test_others_words_are_shown_and_not_obeyed():
    title = "\x1b[31mred\x1b[0m [bold]loud[/] \n\r\x07 {braces} :smile:"
    for text in (shown(Study(draft(title))), shown(plan_study(Study(draft(title))), show=show_plan)):
        assert text.splitlines()[0].rstrip() == " [31mred [0m [bold]loud[/]     {braces} :smile:"
        assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert printable("x" * 1000) == "x" * 200 + "..."


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("show", ["study", "plan"])
def test_lines_fit_the_terminal_and_no_number_is_cut(width, show):
    content = draft(
        "A long title " * 10,
        subjects=(123_456, 98_765, 500_000, 87_654),
        analysis={"n_features": 5000, "n_components": 1000, "scan_length": 16_384, "max_iter": 1234},
        privacy={"epsilon": 123.456789},
        site_2=12.3456,
    )
    study = Study(content)
    text = shown(study, width) if show == "study" else shown(plan_study(study), width, show_plan)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    cells = set(re.findall(r"[\d,.e+-]+\d|\d", text))
    for stage in study.contract.stages:
        assert {f"{stage.query.size:,}", f"{stage.count:,}"} <= cells
    if show == "plan":
        plan = plan_study(study)
        for stage in plan.stages:
            assert {f"{stage.noise:.4g}", round_up(stage.mu), round_up(stage.epsilon)} <= cells


numbers = st.text("0123456789.,e+-", min_size=1, max_size=12)


@settings(max_examples=50)
@given(st.integers(20, 120), st.lists(st.tuples(st.text("abc ", max_size=30), numbers, numbers), max_size=5))
def test_a_table_has_every_cell_whole_at_any_width(width, rows):
    out = io.StringIO()
    table = [list(row) for row in rows]
    show_table(["name", "one", "two"], table, Console(file=out, width=width, color_system=None))
    text = out.getvalue().split()
    for _, one, two in rows:
        assert one in text
        assert two in text
