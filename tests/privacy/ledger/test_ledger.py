"""What a site may rely on: one answer per slot, charged before it leaves, never beyond the cap."""

from __future__ import annotations

import base64
import json
import math
import os
import stat
import threading
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.privacy.charges import Cap, charge, epsilon_of
from capedjica.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from capedjica.privacy.ledger import (
    Ledger,
    LedgerError,
    NotApprovedError,
    Policy,
    SlotBurntError,
    SlotUsedError,
    Summary,
    WrongKeyError,
)
from capedjica.privacy.neighbour import ProtectedUnit
from capedjica.privacy.wording import round_up
from capedjica.securesum.identity import Identity
from tests.privacy.ledger.ledger_site import (
    DELTA,
    POLICY,
    SITES,
    STORAGE_KEY,
    STUDY,
    Site,
    ask,
    begin,
    digest,
    refuse_to_make,
)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def ledger(site):
    with site.open() as opened:
        yield begin(opened)


def spent(ledger: Ledger) -> float:
    return ledger.totals().overall.mu2


# One answer per slot


def test_the_same_request_gets_the_stored_bytes_uncharged(ledger):
    message = ask(ledger, mu=0.1)
    assert spent(ledger) == charge(0.1)
    for _ in range(3):
        assert ask(ledger, mu=0.1, make_message=refuse_to_make) == message
    assert ask(ledger, participants=reversed(SITES), make_message=refuse_to_make) == message
    assert spent(ledger) == charge(0.1)
    assert len(ledger.entries()) == 4


def test_stored_bytes_survive_a_restart(site):
    with site.open() as ledger:
        message = ask(begin(ledger))
    with site.open() as ledger:
        assert ask(ledger, make_message=refuse_to_make) == message
        assert spent(ledger) == charge(0.05)


@pytest.mark.parametrize("change", [{"request_hash": digest("other")}, {"participants": SITES[:2]}])
def test_another_request_for_a_used_slot_is_refused(ledger, change):
    ask(ledger)
    before = ledger.entries()
    with pytest.raises(SlotUsedError, match="slot 0 of block 0"):
        ask(ledger, make_message=refuse_to_make, **change)
    assert ledger.entries() == before


def test_unused_slots_of_an_earlier_process_are_burnt(site):
    with site.open() as ledger:
        ask(begin(ledger), slot=0)
    with site.open() as ledger:
        with pytest.raises(SlotBurntError):
            ask(ledger, slot=1, make_message=refuse_to_make)
        ledger.claim(STUDY, 0, 1)
        ask(ledger, slot=1, attempt=1)


def test_a_block_of_another_open_ledger_is_burnt(site, ledger):
    with site.open() as other:
        with pytest.raises(SlotBurntError):
            ask(other, make_message=refuse_to_make)
        message = ask(ledger)
        assert ask(other, make_message=refuse_to_make) == message


@pytest.mark.parametrize("failure", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3)])
def test_a_message_that_fails_charges_nothing_and_burns_its_slot(ledger, failure):
    def fail() -> bytes:
        raise failure

    with pytest.raises(type(failure)):
        ask(ledger, make_message=fail)
    assert spent(ledger) == 0.0
    assert ledger.entries()[-1].kind == "burn"
    with pytest.raises(SlotBurntError):
        ask(ledger, make_message=refuse_to_make)
    ask(ledger, slot=1)


@pytest.mark.parametrize("wrong", ["text", bytearray(b"x"), None])
def test_a_message_that_is_not_bytes_is_not_recorded(ledger, wrong):
    with pytest.raises(InputError, match="a message must be"):
        ask(ledger, make_message=lambda: wrong)
    assert spent(ledger) == 0.0


def test_a_message_cannot_use_its_own_ledger(ledger):
    with pytest.raises(LedgerError, match="make_message must not use the ledger"):
        ask(ledger, make_message=lambda: ask(ledger, slot=1))
    assert spent(ledger) == 0.0
    assert ledger.verify_chain() == 4


def test_threads_that_ask_the_same_get_one_message(ledger):
    made, answers = [], []

    def make() -> bytes:
        made.append(os.urandom(16))
        time.sleep(0.01)
        return made[-1]

    threads = [
        threading.Thread(target=lambda: answers.append(ask(ledger, make_message=make))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert answers == made * 8


def test_ledgers_started_at_the_same_moment_are_one(site):
    opened, failures = [], []

    def start() -> None:
        try:
            opened.append(site.open())
        except LedgerError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    begin(opened[0])
    assert {ledger.verify_chain() for ledger in opened} == {3}
    for ledger in opened:
        ledger.close()


# Blocks


def test_blocks_only_grow_restarts_included(site):
    with site.open() as ledger:
        begin(ledger)
        ledger.claim(STUDY, 2, 1)
    with site.open() as ledger:
        for block, attempt in [(0, 0), (1, 9), (2, 0), (2, 1)]:
            with pytest.raises(ProtocolError, match="block numbers only grow"):
                ledger.claim(STUDY, block, attempt)
        ledger.claim(STUDY, 2, 2)
        ledger.claim(STUDY, 3, 0)


def test_a_block_must_be_claimed_first(ledger):
    with pytest.raises(ProtocolError, match="claim its block first"):
        ask(ledger, block=1, make_message=refuse_to_make)


def test_blocks_of_studies_are_apart(ledger):
    other = digest("another study")
    ledger.register_study(other, "Another", Cap(1.0, DELTA))
    ledger.claim(other, 0, 0)
    assert ask(ledger) != ask(ledger, study=other)


# Approvals


def test_a_study_needs_approval(site):
    with site.open() as ledger:
        with pytest.raises(NotApprovedError, match="not approved"):
            ledger.claim(STUDY, 0, 0)
        with pytest.raises(NotApprovedError, match="not approved"):
            ask(ledger, make_message=refuse_to_make)


def test_nothing_leaves_after_an_approval_was_revoked(site, ledger):
    ask(ledger)
    ledger.revoke(STUDY, "the ethics board withdrew its consent")
    with site.open() as reopened:
        for slot in (0, 1):
            with pytest.raises(NotApprovedError, match="revoked"):
                ask(reopened, slot=slot, make_message=refuse_to_make)
        with pytest.raises(NotApprovedError, match="revoked"):
            reopened.register_study(STUDY, "Resting state", Cap(2.0, DELTA))
        assert spent(reopened) == charge(0.05)


def test_an_approval_is_given_once(ledger):
    n_entries = len(ledger.entries())
    ledger.register_study(STUDY, "Resting state", Cap(2, DELTA))
    assert len(ledger.entries()) == n_entries
    with pytest.raises(InputError, match="already approved"):
        ledger.register_study(STUDY, "Resting state", Cap(2.5, DELTA))


def test_an_approval_for_subjects_is_written_as_it_was_before_there_was_another_unit(site, ledger):
    """So that old chains of hashes stay as they are, and old ledgers open."""
    (approval,) = [entry for entry in ledger.entries() if entry.kind == "study"]
    assert approval.detail == '{"title":"Resting state","epsilon":2.0,"delta":0.00001}'
    assert ledger.totals().studies[STUDY].neighbour == "subject"


def test_time_points_are_charged_as_such_and_a_whole_subject_stands_beside_them(site, ledger, tmp_path):
    ask(ledger, mu=0.05)
    other = digest("time points")
    ledger.register_study(other, "Time points", Cap(2.0, DELTA), ProtectedUnit("sample", 30))
    ledger.claim(other, 0, 0)
    ask(ledger, study=other, mu=0.1)
    with site.open() as reopened:
        totals = reopened.totals()
        with pytest.raises(InputError, match=r"already approved .* for each single time point, got"):
            reopened.register_study(other, "Time points", Cap(2.0, DELTA))
        subject, sample, overall = totals.studies[STUDY], totals.studies[other], totals.overall
        assert (subject.neighbour, subject.subject_epsilon) == ("subject", subject.epsilon)
        assert (sample.neighbour, overall.neighbour) == ("sample", "sample")
        assert sample.subject_mu2 == pytest.approx(900 * sample.mu2)
        assert sample.subject_epsilon == pytest.approx(gaussian_epsilon(30 * 0.1, DELTA), rel=1e-6)
        assert overall.mu2 == pytest.approx(0.05**2 + 0.1**2)
        assert overall.subject_mu2 == pytest.approx(0.05**2 + 900 * 0.1**2)
        assert "for each participant at delta" in str(subject)
        assert f"epsilon {round_up(sample.epsilon)} for each single time point (" in str(sample)
        first, second = reopened.outbox()
        assert " for each participant at delta" in str(first)
        assert " for each single time point (" in str(second)
        reopened.export(tmp_path / "all.json")
        written = json.loads((tmp_path / "all.json").read_text())
        assert written["studies"][other.hex()]["neighbour"] == "sample"
        assert written["studies"][STUDY.hex()]["neighbour"] == "subject"


def test_a_study_cannot_be_approved_beyond_the_policy(ledger):
    with pytest.raises(BudgetExceededError, match="epsilon 5"):
        ledger.register_study(digest("greedy"), "Greedy", Cap(5.0, DELTA))


# Charges and caps


@settings(deadline=None)
@given(st.floats(0, 1e160))
def test_a_charge_is_the_square_rounded_up(mu):
    mu2 = charge(mu)
    assert mu2 == math.inf or Fraction(mu2) >= Fraction(mu) ** 2
    assert mu2 == math.inf or Fraction(math.nextafter(mu2, 0.0)) < Fraction(mu) ** 2 or mu2 == 0.0


@settings(deadline=None)
@given(st.floats(1e-3, 50), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_a_cap_never_allows_more_than_it_says(epsilon, delta):
    cap = Cap(epsilon, delta)
    assert Fraction(cap.mu2) <= Fraction(gaussian_mu(epsilon, delta)) ** 2
    assert gaussian_delta(math.sqrt(cap.mu2), epsilon) <= delta * (1 + 1e-10)
    # and it is not a smaller cap in disguise
    assert gaussian_delta(math.sqrt(cap.mu2) * (1 + 1e-9), epsilon) > delta


@settings(deadline=None)
@given(st.floats(1e-6, 30) | st.floats(1e5, 1e7))
def test_the_epsilon_shown_is_not_below_the_exact_one(mu):
    assert epsilon_of(charge(mu), DELTA) >= gaussian_epsilon(mu, DELTA) * (1 - 1e-14)


def test_the_comparison_is_exact_to_the_last_bit():
    cap = POLICY.total
    POLICY.check(cap.mu2, [], cap, "x")
    half = cap.mu2 / 2
    POLICY.check(half, [half], cap, "x")
    for asked, before in [
        (math.nextafter(cap.mu2, math.inf), []),
        (5e-324, [cap.mu2]),
        (half, [math.nextafter(half, math.inf)]),
        (cap.mu2 / 1024, [cap.mu2 / 1024] * 1023 + [5e-324]),
        (1e308, [1e308, 1e308]),
    ]:
        with pytest.raises(BudgetExceededError):
            POLICY.check(asked, before, cap, "x")


def test_a_study_stops_at_its_cap_and_says_how_much(ledger):
    mu = 0.1
    fits = math.floor(Cap(2.0, DELTA).mu2 / charge(mu))
    for slot in range(fits):
        ask(ledger, slot=slot, mu=mu)
    before = ledger.entries()
    asked = f"{gaussian_epsilon(mu, DELTA):.6g}"
    with pytest.raises(BudgetExceededError, match=rf"'Resting state' allows epsilon 2 .* asks for {asked}"):
        ask(ledger, slot=fits, mu=mu, make_message=refuse_to_make)
    assert ledger.entries() == before
    assert ledger.totals().studies[STUDY].epsilon <= 2.0
    # A refused slot is not burnt: a smaller release may still use its mask.
    ask(ledger, slot=fits, mu=mu / 100)


def test_studies_together_stop_at_the_total_cap(site):
    policy = Policy(total=Cap(3.0, DELTA), per_study=Cap(2.0, DELTA))
    mu = gaussian_mu(1.9, DELTA)
    with site.open(policy=policy) as ledger:
        ask(begin(ledger), mu=mu)
        for name in ("second", "third"):
            ledger.register_study(digest(name), name, Cap(2.0, DELTA))
            ledger.claim(digest(name), 0, 0)
        ask(ledger, study=digest("second"), mu=mu)
        with pytest.raises(BudgetExceededError, match="this site in total allows epsilon 3"):
            ask(ledger, study=digest("third"), mu=mu, make_message=refuse_to_make)
        assert ledger.totals().overall.epsilon <= 3.0


def test_a_tighter_policy_holds_for_studies_approved_before(site, ledger):
    tight = Policy(total=Cap(8.0, DELTA), per_study=Cap(0.1, DELTA))
    with site.open(policy=tight) as reopened:
        reopened.claim(STUDY, 1, 0)
        with pytest.raises(BudgetExceededError, match=r"allows epsilon 0\.1"):
            ask(reopened, block=1, make_message=refuse_to_make)


@pytest.mark.parametrize("mu", [math.inf, 1e200])
def test_a_release_without_privacy_needs_an_explicit_policy(site, ledger, mu):
    with pytest.raises(BudgetExceededError, match="without privacy"):
        ask(ledger, mu=mu, make_message=refuse_to_make)
    lax = Policy(POLICY.total, POLICY.per_study, allow_non_private=True)
    with site.open(policy=lax) as reopened:
        reopened.claim(STUDY, 1, 0)
        ask(reopened, block=1, mu=mu)
        totals = reopened.totals()
        assert totals.overall.mu2 == totals.overall.epsilon == totals.studies[STUDY].epsilon == math.inf
        ask(reopened, block=1, slot=1, mu=0.1)
        with pytest.raises(BudgetExceededError):
            ask(reopened, block=1, slot=2, mu=5.0, make_message=refuse_to_make)
    with site.open() as strict:
        strict.claim(STUDY, 2, 0)
        with pytest.raises(BudgetExceededError, match="spent inf"):
            ask(strict, block=2, mu=1e-9, make_message=refuse_to_make)


def test_a_free_release_is_recorded_too(ledger):
    ask(ledger, mu=0.0)
    assert spent(ledger) == 0.0
    assert ledger.totals().overall.n_releases == 1


# Statements


def test_totals_and_outbox_tell_what_left(ledger):
    messages = [ask(ledger, slot=slot, mu=0.1 * (slot + 1)) for slot in range(3)]
    ledger.record_abort(STUDY, 0, 0, 1, "lima vanished")
    ledger.record_abort(STUDY, 0, 0, 1, "lima vanished, said twice")
    study = ledger.totals().studies[STUDY]
    assert study.mu2 == math.fsum(charge(0.1 * k) for k in (1, 2, 3))
    assert study.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(study.mu2), DELTA), rel=1e-12)
    assert (study.n_releases, study.n_aborted) == (3, 1)
    outbox = list(ledger.outbox())
    assert [item.message for item in outbox] == messages
    assert [item.aborted for item in outbox] == [False, True, False]
    assert outbox[0].participants == tuple(sorted(SITES))
    text = str(outbox[1])
    for word in ("UTC", "Resting state", "gradient", "5 values", "40 bytes", "aborted"):
        assert word in text


def test_an_abort_needs_a_release(ledger):
    with pytest.raises(ProtocolError, match="no release"):
        ledger.record_abort(STUDY, 0, 0, 0, "nothing to abort")


def test_export_is_one_readable_file(site, tmp_path):
    lax = Policy(POLICY.total, POLICY.per_study, allow_non_private=True)
    with site.open(policy=lax) as ledger:
        message = ask(begin(ledger), mu=math.inf)
        ledger.export(tmp_path / "plain.json")
        ledger.export(tmp_path / "full.json", messages=True)
        document = json.loads((tmp_path / "plain.json").read_text())
        assert [entry["kind"] for entry in document["entries"]] == ["genesis", "study", "claim", "release"]
        assert document["totals"]["mu2"] == "infinity"
        assert document["entries"][-1]["time"].endswith("+00:00")
        assert "message" not in document["entries"][-1]
        full = json.loads((tmp_path / "full.json").read_text())
        assert full["entries"][-1]["message"] == base64.b64encode(message).decode()
        for target in (site.path, site.head_path):
            with pytest.raises(InputError, match="must not replace"):
                ledger.export(target)


def test_a_clock_that_jumps_breaks_nothing(site, monkeypatch):
    clock = iter([2_000_000_000, 5, 1_700_000_000, 0, 1_600_000_000, 4_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 10**9)
    with site.open() as ledger:
        begin(ledger)
        for slot in range(3):
            ask(ledger, slot=slot)
    with site.open() as ledger:
        assert ledger.verify_chain() == 6
        assert [item.slot.slot for item in ledger.outbox()] == [0, 1, 2]
        assert [entry.seq for entry in ledger.entries()] == [1, 2, 3, 4, 5, 6]


# Secrets and bad input


def test_no_secret_in_the_file_or_in_any_repr(site, ledger):
    secret = b"the patient's covariance, in the clear"
    ask(ledger, make_message=lambda: secret)
    assert secret not in site.path.read_bytes()
    assert STORAGE_KEY not in site.path.read_bytes()
    shown = " ".join(map(repr, [ledger, *ledger.outbox(), *ledger.entries(), *vars(ledger).values()]))
    shown += " ".join(map(repr, vars(ledger._chain).values()))
    assert "patient" not in shown
    assert repr(STORAGE_KEY) not in shown
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o600


def test_a_wrong_key_is_told(site, ledger):
    with pytest.raises(WrongKeyError, match="storage key"):
        site.open(storage_key=bytes(32))
    ask(ledger)


BAD_RELEASES: list[dict[str, Any]] = [
    {"mu": math.nan},
    {"mu": -0.1},
    {"mu": "much"},
    {"study": b"short"},
    {"study": "0" * 32},
    {"request_hash": b""},
    {"block": -1},
    {"block": 1 << 63},
    {"attempt": 0.5},
    {"slot": None},
    {"slot": "0"},
    {"participants": ()},
    {"participants": "berlin"},
    {"participants": ("berlin", "berlin")},
    {"participants": ("ber\nlin",)},
    {"participants": (1, 2)},
    {"summary": Summary("", 1)},
    {"summary": Summary("two\nlines", 1)},
    {"summary": Summary("half a surrogate \ud800", 1)},
    {"summary": Summary("gradient", -1)},
    {"summary": Summary("x" * 501, 1)},
]


@pytest.mark.parametrize("bad", BAD_RELEASES, ids=str)
def test_bad_input_is_refused_and_nothing_changes(ledger, bad):
    before = ledger.entries()
    with pytest.raises(InputError) as caught:
        ask(ledger, **{"make_message": refuse_to_make} | bad)
    assert "\n" not in str(caught.value)
    assert ledger.entries() == before
    ask(ledger)


@pytest.mark.parametrize(
    "change",
    [
        {"storage_key": b"short"},
        {"storage_key": "x" * 32},
        {"timeout": 0},
        {"timeout": math.nan},
        {"sign": lambda data: b"\0" * 64},
        {"sign": lambda data: b"short"},
        {"verify": lambda signature, data: False},
    ],
)
def test_bad_settings_are_refused(site, change):
    with pytest.raises(InputError) as caught:
        site.open(**change)
    assert "short" not in str(caught.value)
    with site.open() as ledger:
        begin(ledger)


def test_a_sites_own_identity_signs_the_head(site):
    identity, stranger = Identity.generate(), Identity.generate()
    keys = {"sign": identity.sign, "verify": identity.public("berlin").verify}
    with site.open(**keys) as ledger:
        head = ask(begin(ledger)) and ledger.head
    with site.open(**keys) as ledger:
        ledger.check_against(head)
    with pytest.raises(LedgerError, match="not signed by this site"):
        site.open(sign=stranger.sign, verify=stranger.public("lima").verify)


def test_the_head_needs_a_second_place(site):
    with pytest.raises(InputError, match="head_path must differ"):
        site.open(head_path=site.path)


def test_a_closed_ledger_says_so(site):
    with site.open() as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        ledger.totals()


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), ("x", 0.1)]
)
def test_a_cap_must_be_a_cap(epsilon, delta):
    with pytest.raises(InputError):
        Cap(epsilon, delta)
