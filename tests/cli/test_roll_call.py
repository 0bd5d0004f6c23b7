"""The table of sites that ``run`` shows on a server, and ``status`` in words."""

from rich.console import Console

from capedjica.cli.coordinator.status import sites_table
from capedjica.coordinator.flare.progress import Progress
from capedjica.coordinator.flare.status import roll_call
from tests.support.small_study import SIZES, make_study

REFUSED = "it does not take part; its own log says why"


def shown(sites):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(sites_table(sites))
    return [line.split() for line in capture.get().splitlines()]


def test_every_site_has_a_line_with_its_people_and_whether_it_approved(tmp_path):
    study = make_study(tmp_path)
    connected = {"s1": True, "s2": True, "s3": True, "s4": False}
    latest = Progress(phase="stopped", present=("s1", "s3"), lost={"s2": REFUSED, "s4": "did not join"})
    sites = roll_call(study, connected, latest)
    assert [site["enrolled"] for site in sites] == list(SIZES)
    lines = shown(sites)
    assert lines[1] == ["s1", "6", "yes", "yes", "-"]
    assert lines[2][:8] == ["s2", "9", "yes", "?", "it", "does", "not", "take"]
    assert lines[-1] == ["s4", "8", "no", "?", "did", "not", "join"]
    assert [site["words"] for site in sites] == [
        "connected; has approved",
        f"connected; lost during the run: {REFUSED}",
        "connected; has approved",
        "not connected; lost during the run: did not join",
    ]


def test_before_anybody_was_asked_nobody_is_said_to_have_approved(tmp_path):
    sites = roll_call(make_study(tmp_path), {}, None)
    assert {(site["connected"], site["approved"]) for site in sites} == {(False, False)}
    assert {site["words"] for site in sites} == {"not known: no running server answers"}
