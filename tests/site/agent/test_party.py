"""A site's part in a study: when it joins, what it refuses and to whom it says why, and what it is told."""

import re
import shutil

import msgspec
import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.flare.parcels import Notice, write_notice
from capedjica.mechanisms.messages import VERSION, Refusal, Status
from capedjica.securesum.identity import Identity
from capedjica.site.agent import study_session as party_module
from capedjica.site.approval.participation import approve, taking_part
from capedjica.site.approval.revocation import find_approval, revoke
from capedjica.site.home import SiteHome
from tests.site.agent.agents import asked, desk_of, hello, party_of, read

SILENT = "it does not take part; its own log says why"


def reply_to(desk, study, question):
    return read(study, question, asked(desk.receive, study, question))


def log_of(home):
    return (home.folder / "site.log").read_text()


def check_untouched(home, study):
    """Nothing was charged and no block begun."""
    with home.open_ledger(must_exist=True) as ledger:
        assert ledger.totals().overall.n_releases == 0
        assert ledger.last_block(study.contract.hash) == -1


def test_a_greeting_is_answered_with_a_signed_status(ready, study):
    with desk_of(ready, study) as desk:
        reply = reply_to(desk, study, hello(study))
    assert (type(reply), reply.sender, reply.carrier) == (Status, "s1", "user")


@pytest.mark.parametrize("carrier", ["user", "landlock", "none"])
def test_what_confines_the_carrier_is_told(ready, study, carrier):
    party = party_of(ready, study, carrier)
    try:
        assert read(study, hello(study), party.handle(hello(study))).carrier == carrier
    finally:
        party.close()


def test_a_question_about_another_study_is_refused_and_nothing_is_charged(ready, study):
    with desk_of(ready, study) as desk:
        other = hello(study, contract=b"\xab" * 32)
        reply = reply_to(desk, study, other)
        assert "belongs to another study" in reply.reason
        # The control: one of its own is answered.
        assert isinstance(reply_to(desk, study, hello(study)), Status)
    check_untouched(ready, study)


# Who does not take part, and why


def refused(home, study, caplog, seed=None):
    """Have a greeting refused; return what other logs got to see."""
    with desk_of(home, study, seed) as desk:
        assert reply_to(desk, study, hello(study)) == Refusal(VERSION, study.contract.hash, "s1", SILENT)
    return "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("capedjica")
    )


def test_a_study_that_was_not_approved_is_refused(ready, study, caplog):
    for path in (ready.ledger_path, ready.head_path):
        path.unlink()
    shutil.rmtree(ready.approved_path)
    refused(ready, study, caplog)
    assert "it has not approved 'A small study'" in log_of(ready)


def test_the_reason_of_a_refusal_is_in_the_sites_own_log_alone(ready, study, caplog):
    """It names a patient: the first whose scan changed."""
    np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
    assert "sub-03" not in refused(ready, study, caplog)
    assert "does not take part: site s1: the data of 1 of 6 participants changed" in log_of(ready)
    assert "the first is sub-03" in log_of(ready)
    assert (ready.folder / "site.log").stat().st_mode & 0o777 == 0o600
    check_untouched(ready, study)


def test_an_unexpected_error_is_in_the_sites_own_log_alone(ready, study, caplog, monkeypatch):
    """With the lines it came from, which may have the file of a scan in them."""

    def fail(*_):
        raise OSError(f"{ready.data_path}/sub-03.npy is odd")

    monkeypatch.setattr(party_module, "why_not", fail)
    assert "sub-03" not in refused(ready, study, caplog)
    assert "sub-03.npy is odd" in log_of(ready)
    assert "Traceback" in log_of(ready)


def test_a_reason_that_cannot_be_written_is_told_to_nobody(ready, study, caplog, capsys):
    np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
    (ready.folder / "site.log").mkdir()
    assert "sub-03" not in refused(ready, study, caplog)
    assert "sub-03" not in "".join(capsys.readouterr())


def test_a_key_revoked_after_approval_is_refused(ready, study, caplog):
    peer = SiteHome.load(study.folder / "sites" / "s3").card().fingerprint
    file = ready.folder / "site.toml"
    file.write_text(re.sub("# revoked = .*", f'revoked = ["{peer}"]', file.read_text()))
    refused(SiteHome.load(ready.folder), study, caplog)
    assert "site s3 of the study has a key that this site revoked" in log_of(ready)


def test_a_seed_for_a_study_that_says_nothing_of_it_is_refused(ready, study, caplog):
    refused(ready, study, caplog, seed=7)
    assert "got a noise seed, but the study does not set insecure_noise" in log_of(ready)
    check_untouched(ready, study)


def test_a_site_that_takes_part_elsewhere_is_refused(ready, study, caplog):
    with taking_part(ready, study):
        refused(ready, study, caplog)
    assert "is already taking part in another run of 'A small study'" in log_of(ready)


@pytest.mark.parametrize(
    ("with_ledger", "words"),
    [
        (True, "the storage key is not that of the ledger"),
        (False, "the study lists a different key for this site"),
    ],
)
def test_a_site_whose_identity_was_exchanged_does_not_take_part(ready, study, with_ledger, words):
    """What it signs is signed by another key, which nobody believes."""
    changed = [ready.identity_path] if with_ledger else [
        ready.identity_path, ready.ledger_path, ready.head_path]  # fmt: skip
    own = {path: path.read_bytes() for path in changed}
    for path in changed:
        path.unlink()
    Identity.generate().save(ready.identity_path)
    party = party_of(ready, study)
    reply = party.handle(hello(study))
    party.close()
    with pytest.raises(Exception, match="is not signed by its key"):
        read(study, hello(study), reply)
    assert SILENT.encode() in reply
    assert words in log_of(ready)
    for path, content in own.items():
        path.write_bytes(content)
    check_untouched(ready, study)


def test_a_reason_that_is_over_is_not_remembered(ready, study):
    """The question is put again, through the same job or another, and worked on again."""
    scan = ready.data_path / "sub-03.npy"
    kept = np.load(scan)
    np.save(scan, np.ones((60, 100)))
    with desk_of(ready, study) as desk:
        assert isinstance(reply_to(desk, study, hello(study)), Refusal)
        np.save(scan, kept)
        approve(ready, study)
        assert isinstance(reply_to(desk, study, hello(study)), Status)


# Jobs come and go


def test_scans_are_compared_with_the_approval_at_every_greeting_until_the_study_has_begun(ready, study):
    party = party_of(ready, study)
    try:
        party.connected(None)
        assert isinstance(read(study, hello(study), party.handle(hello(study))), Status)
        np.save(ready.data_path / "sub-03.npy", np.ones((60, 100)))
        assert isinstance(read(study, hello(study), party.handle(hello(study))), Refusal)
    finally:
        party.close()


def test_a_study_that_has_begun_is_not_joined_anew_for_another_job(ready, study, monkeypatch):
    """Its masks are still there; with another seed it would be another run."""
    party = party_of(ready, study)
    joined, join = [], party._join
    monkeypatch.setattr(party, "_join", lambda: joined.append(1) or join())
    monkeypatch.setattr(party_module, "has_begun", lambda *_: True)
    try:
        for _ in range(3):
            party.connected(None)
            assert isinstance(read(study, hello(study), party.handle(hello(study))), Status)
        assert len(joined) == 1
        party.connected(7)
        assert isinstance(read(study, hello(study), party.handle(hello(study))), Refusal)
        assert len(joined) == 2
    finally:
        party.close()


# Revocation


def test_a_kept_answer_is_not_handed_out_after_a_revocation(ready, study):
    with desk_of(ready, study) as desk:
        first = asked(desk.receive, study, hello(study))
        assert first == asked(desk.receive, study, hello(study))
        assert first == asked(desk.receive, study, hello(study), again=True)
        other = SiteHome.load(ready.folder)
        revoke(other, find_approval(other, study.content.title))
        for again in (False, True):
            reply = read(study, hello(study), asked(desk.receive, study, hello(study), again=again))
            assert reply.reason == "it no longer answers"
        another = hello(study, 1)
        assert isinstance(read(study, another, asked(desk.receive, study, another)), Refusal)


# Notices of the coordinator


def notice(study, key=None, of=None):
    told = Notice(VERSION, of or study.hash, "over", "2026-01-01")
    return told if key is None else msgspec.structs.replace(told, signature=key.sign(told.content))


def coordinators_key(study):
    return Identity.load(study.folder / "federation" / "coordinator.pem")


def test_a_study_that_the_coordinator_ended_is_over(ready, study):
    with desk_of(ready, study) as desk:
        assert isinstance(reply_to(desk, study, hello(study)), Status)
        assert desk.receive(write_notice(notice(study, coordinators_key(study)))) == b""
    with desk_of(ready, study) as desk:
        assert reply_to(desk, study, hello(study)).reason == SILENT
    assert "the coordinator ended the study at 2026-01-01" in log_of(ready)


@pytest.mark.parametrize("forged", ["not signed", "by another", "of another study", "changed"])
def test_a_notice_that_the_coordinator_has_not_signed_is_ignored(ready, study, forged):
    """Whoever carries it cannot end a study."""
    key = coordinators_key(study)
    given = {
        "not signed": notice(study),
        "by another": notice(study, Identity.generate()),
        "of another study": notice(study, key, of=bytes(32)),
        "changed": msgspec.structs.replace(notice(study, key), when="2027-01-01"),
    }[forged]
    with desk_of(ready, study) as desk:
        assert desk.receive(write_notice(given)) == b""
    with desk_of(ready, study) as desk:
        assert isinstance(reply_to(desk, study, hello(study)), Status)
    assert "ignored a notice that is not signed by the coordinator of this study" in log_of(ready)


def test_the_key_that_counts_is_the_one_of_the_kit(ready, study):
    """With another key in its label, a notice of the coordinator's is as good as forged."""
    party = party_of(ready, study)
    party._label = msgspec.structs.replace(party._label, coordinator=Identity.generate().public_key.hex())
    party.notice(notice(study, coordinators_key(study)))
    assert not list(ready.folder.rglob("over.txt"))


def test_a_site_whose_key_cannot_be_read_has_no_part(ready, study):
    ready.identity_path.write_bytes(b"")
    with pytest.raises(InputError):
        party_of(ready, study)
