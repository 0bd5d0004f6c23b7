"""Only where each site has a machine of its own is it said that nobody's data left it."""

import re
from dataclasses import replace

import pytest

from capedjica.coordinator.run.report import run_findings, run_report
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.report.data_location import AT_SITES, ON_ONE_MACHINE, whereabouts_of
from capedjica.report.group import group_page
from tests.support.small_study import make_study

# What is true of sites with machines of their own alone.
CLAIMS = ("left their site", "leaving their site", "stayed at their", "only ever read at their own site")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    study = make_study(folder)
    run_study(study, find_sites(study, folder / "sites"), folder / "run")
    return folder / "run"


def words(page):
    """What a page says, without markup."""
    return " ".join(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def test_a_run_on_one_machine_does_not_say_that_data_stayed_at_sites(run):
    said = words(run_report(run).html)
    assert [claim for claim in CLAIMS if claim in said] == []
    assert "; all sites were folders on one machine." in said
    assert "were all on one computer." in said
    assert "on one machine that held the data of all participants" in said
    assert "Spent: according to the site" in said


def test_a_run_between_machines_does(run):
    said = words(group_page(replace(run_findings(run), where=AT_SITES)))
    assert [claim for claim in CLAIMS if claim not in said] == []
    assert "one machine" not in said


@pytest.mark.parametrize(
    ("carriers", "where"),
    [
        ({"north": "embedded", "south": "embedded"}, ON_ONE_MACHINE),
        ({"north": "landlock", "south": "user"}, AT_SITES),
        ({"north": "none", "south": "user"}, AT_SITES),
        ({"north": "embedded", "south": "user"}, ON_ONE_MACHINE),
    ],
)
def test_what_carried_the_messages_tells_where_the_data_were(carriers, where):
    assert whereabouts_of(carriers) is where


def test_the_folder_of_a_study_is_told_from_that_of_its_run(run):
    with pytest.raises(InputError, match=f"is not the folder of a complete run; .* such as {run}, or"):
        run_report(run.parent)
