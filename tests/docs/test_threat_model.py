"""Every claim of the threat model names a test, and every test was seen to notice a defence that is gone."""

import re

from tests.defences.catalogue import DEFENCES
from tests.defences.markers import changed, markers, place_of
from tests.defences.outcomes import REPORT, described
from tests.support.places import ROOT

FLARE = (
    "minutes each; 'record before sending, real processes' stands for all, the rest is shown in one process"
)

# Tests without a change of ours that they must notice.
EXCEPTIONS = {
    "test_nothing_of_a_subject_is_with_the_aggregator": "leaks that are planted are found by the same search",
    "test_a_hostile_program_in_the_place_of_flare_reaches_nothing_and_obtains_what_is_charged": (
        "the next test of that file takes the boundary away, and the cap is taken away in one process"
    ),
    "test_a_right_result_passes": "the others of that file make it wrong",
    "test_the_audit_stays_below_the_claim_and_reaches_a_third_of_it": (
        "the next test of that file takes the noise away, in audits of the same size"
    ),
    "test_the_same_program_without_a_boundary_reads_everything": "there is no defence in it",
    "test_nonsense_at_the_port_takes_no_more_memory_than_the_server_is_given": "the system's own",
    "test_nonsense_at_the_port_does_not_disturb_a_study_under_way": "FLARE's own",
    "test_one_stranger_who_says_nothing_keeps_newcomers_out": "what FLARE cannot do",
    "test_a_study_under_way_goes_on_whatever_strangers_do_not_say": "FLARE's own",
    "test_a_site_under_another_name_is_not_let_in": "FLARE's own defence",
    "test_the_old_key_opens_it_no_more": "what is sealed does not open",
    "test_too_few_sites_are_named": FLARE,
    "test_a_study_begins_without_a_site_that_is_not_there": FLARE,
}
# Parts of names: many tests of which one stands for all.
EXCEPTED_FILES = {
    "tests/faults/flare/test_flare_kills.py": FLARE,
    "tests/faults/flare/test_flare_outages.py": FLARE,
}


def named_tests():
    text = (ROOT / "docs" / "concepts" / "threat-model.md").read_text("utf-8")
    assert not re.findall(r"`tests/[\w/.]+\.py`", text), "a file is not a test"
    return {f"{path}::{name}" for path, name in re.findall(r"`(tests/[\w/.]+)::(\w+)`", text)}


def test_the_tests_that_the_threat_model_names_exist():
    named = named_tests()
    assert len(named) > 80
    for test in named:
        path, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), test


def test_every_test_of_the_threat_model_has_a_defence_to_miss():
    named, tried = named_tests(), {place_of(defence.test) for defence in DEFENCES}
    left = {test for test in named - tried if test.partition("::")[0] not in EXCEPTED_FILES}
    assert left == {place_of(name) for name in EXCEPTIONS}
    assert tried <= named


def test_every_defence_can_still_be_taken_away():
    """Every change finds its marker and gives a source that is Python; no marker is without a change."""
    assert len({defence.name for defence in DEFENCES}) == len(DEFENCES)
    assert {marker for defence in DEFENCES for marker in defence.changes} == markers().keys()
    for defence in DEFENCES:
        for marker, new in defence.changes.items():
            text = (ROOT / markers()[marker]).read_text("utf-8")
            other = changed(text, marker, new)
            assert other != text, (defence.name, marker)
            compile(other, markers()[marker], "exec")


def test_every_defence_that_was_taken_away_was_noticed():
    """Every one of them, by the very change and the test that stand here now; and nothing else is told of."""
    _, summary, _, _, *lines = REPORT.read_text("utf-8").splitlines()
    assert [line.split(" | ")[1] for line in lines] == [defence.name for defence in DEFENCES]
    for defence, line in zip(DEFENCES, lines, strict=True):
        assert line.startswith(f"noticed | {described(defence)} | "), defence.name
    assert summary == f"{len(DEFENCES)} of {len(DEFENCES)} noticed, 0 not tried."
