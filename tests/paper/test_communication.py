"""The traffic of the real protocol: counted in full, and of the orders that the paper states."""

import csv
from dataclasses import replace

import pytest

from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Query, Stage
from paper.communication import (
    QUICK,
    Meter,
    _Zeros,
    by_iterations,
    by_study,
    by_sum,
    findings,
    linear_fit,
    main,
    measure,
)


@pytest.fixture(scope="module")
def rows():
    return measure(QUICK)


def test_quick_version_writes_everything(tmp_path):
    main(["--quick", "--out", str(tmp_path / "results")])
    with (tmp_path / "results/communication.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["scheme"] for row in rows} == {"conventional", "cape", "capeDJICA", "secure aggregation"}
    assert (tmp_path / "results/communication.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/communication.svg").read_text().lstrip().startswith("<?xml")
    assert "O(S² + SD)" in (tmp_path / "RESULTS.md").read_text()


def test_meter_misses_nothing_that_the_engine_carried():
    meter = Meter()
    names = ["a", "b", "c", "d"]
    stages = [Stage(Query("mean", 7, 1.0))]
    study = EmbeddedStudy(
        "t",
        dict.fromkeys(names, 1),
        dict.fromkeys(names, _Zeros(7)),
        stages,
        in_process(epsilon=1.0),
        carrier=meter,
    )
    study.engine.keep_transcript = True
    study.mean(0)
    letters = study.engine.transcript
    assert meter.messages.total() == len(letters)
    assert meter.sent.total() + meter.received.total() == sum(len(x.data) for x in letters)
    for name in names:
        assert meter.sent[name] == sum(
            len(x.data) for x in letters if (x.site, x.direction) == (name, "answer")
        )


def test_both_ends_count_the_same(rows):
    for row in rows:
        assert row.aggregator_messages == pytest.approx(row.sites * row.site_messages)
        assert row.aggregator_bytes == pytest.approx(row.sites * row.site_bytes, rel=0.02)


def test_online_release_of_cape_is_one_question_and_one_answer():
    cape, conventional = (by_study(scheme, 4, 50, 3) for scheme in ("cape", "conventional"))
    assert cape.online_messages == conventional.online_messages == 2
    assert cape.online_bytes == pytest.approx(conventional.online_bytes, rel=0.05)
    assert cape.site_messages > conventional.site_messages


def test_masks_travel_once_more_than_the_numbers():
    """8 bytes a number for conventional and a secure sum, 16 for cape: the mask and the release."""
    for measured, expected in (
        ([by_study("conventional", 4, d, 2) for d in (1000, 3000)], 8),
        ([by_study("cape", 4, d, 2) for d in (1000, 3000)], 16),
        ([by_sum(4, d) for d in (1000, 3000)], 8),
    ):
        small, large = measured
        assert (large.site_bytes - small.site_bytes) / 2000 == pytest.approx(expected, rel=0.01)


def test_bytes_of_a_site_are_linear_in_the_sites():
    small, middle, large = (by_sum(s, 10).site_bytes for s in (6, 12, 24))
    assert (large - middle) / (middle - small) == pytest.approx(2, rel=0.05)


def test_an_iteration_sends_w_and_b_to_every_site():
    """20 numbers of 8 bytes more, and the names and shapes of the two arrays."""
    bare, whole = by_study("cape", 4, 20, 3), by_iterations(4, 20, 3)
    assert whole.size == bare.size == 20
    assert whole.site_sent == bare.site_sent
    assert 160 <= whole.site_received - bare.site_received < 250


def test_fit_finds_what_is_there_and_would_notice_squares(rows):
    found, worst = linear_fit(rows, "cape")
    assert found[2] == pytest.approx(16, rel=0.05)
    assert worst < 0.05
    wrong = [replace(row, site_sent=10.0 * row.sites**3 + row.size) for row in rows]
    extra = [replace(row, sites=3 * row.sites, site_sent=10.0 * (3 * row.sites) ** 3) for row in rows]
    assert linear_fit([*wrong, *extra], "cape")[1] > 0.1


def test_findings_follow_the_numbers(rows):
    assert [finding.holds for finding in findings(QUICK, rows)] == ["yes"] * 4
