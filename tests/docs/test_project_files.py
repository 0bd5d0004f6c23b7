"""Files of a public project: software paper, citation, templates and policies agree with the code."""

import re
import tomllib

import pytest
import yaml

from tests.support.places import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PAPER = (ROOT / "joss" / "paper.md").read_text("utf-8")
HEAD, BODY = PAPER.removeprefix("---\n").split("\n---\n", 1)


def test_every_citation_of_the_paper_is_in_its_bibliography():
    known = re.findall(r"^@\w+\{(\w+),", (ROOT / "joss" / "paper.bib").read_text("utf-8"), re.MULTILINE)
    cited = re.findall(r"@(\w+)", BODY)
    assert set(cited) == set(known)
    assert len(known) == len(set(known))


def test_the_paper_has_the_form_of_the_journal():
    head = yaml.safe_load(HEAD)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= head.keys()
    assert (ROOT / "joss" / head["bibliography"]).exists()
    sections = re.findall(r"^# (.+)$", BODY, re.MULTILINE)
    for wanted in ("Summary", "Statement of need", "State of the field", "Software design", "References"):
        assert wanted in sections
    assert 750 <= len(BODY.split()) <= 1750


def test_the_citation_names_the_version_and_the_article():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == VERSION
    article = citation["preferred-citation"]
    assert (article["journal"], article["volume"], article["year"]) == (
        "IEEE Transactions on Signal Processing",
        69,
        2021,
    )
    assert article["title"].startswith("A Correlated Noise-Assisted Decentralized Differentially Private")


@pytest.mark.parametrize("template", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=str)
def test_templates_have_a_name_and_a_purpose(template):
    head = yaml.safe_load(template.read_text("utf-8").split("---\n")[1])
    assert head["name"]
    assert head["about"]


def test_the_changelog_begins_with_this_version():
    first, second, *_ = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first == "Unreleased"
    assert "dev" in VERSION or second.startswith(f"{VERSION} (")
