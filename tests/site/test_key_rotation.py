"""Keys that change and keys that are trusted no more."""

import re
import shutil

import pytest

from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy.ledger import RestoredError
from capedjica.securesum.identity import Identity
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve, taking_part
from capedjica.site.home import SiteHome
from capedjica.site.key_rotation import bound_studies, rotate_key
from tests.privacy.ledger.ledger_site import ask, begin
from tests.support.in_process import run_main
from tests.support.small_study import make_study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)


@pytest.fixture
def home(study, tmp_path):
    return SiteHome.load(tmp_path / "sites" / "s1")


def spend(home):
    with home.open_ledger() as ledger:
        begin(ledger)
        ask(ledger, 0, mu=0.1234567)
        return ledger.totals(), list(ledger.outbox())


# Revocation


def revoke(home, *fingerprints):
    file = home.folder / "site.toml"
    file.write_text(re.sub("# revoked = .*", f"revoked = {list(fingerprints)!r}", file.read_text()))
    return SiteHome.load(home.folder)


@pytest.mark.parametrize("spell", [str, lambda text: text.replace(" ", ""), str.upper])
def test_a_study_with_a_revoked_key_is_refused(home, study, tmp_path, spell):
    assert problems(home, study) == []
    peer = SiteHome.load(tmp_path / "sites" / "s3").card()
    home = revoke(home, Identity.generate().fingerprint, spell(peer.fingerprint))
    (found,) = problems(home, study)
    assert found.startswith("site s1: site s3 of the study has a key that this site revoked, fingerprint ")
    assert peer.fingerprint in found
    with pytest.raises(InputError, match="cannot approve 'A small study': site s3 of the study has a key"):
        approve(home, study)
    with pytest.raises(InputError, match="cannot be run; nothing was spent: site s1: site s3"):
        run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")


def test_other_keys_may_be_revoked(home, study):
    assert problems(revoke(home, Identity.generate().fingerprint), study) == []


@pytest.mark.parametrize("given", ["s3", "abcd efgh", "1" * 52])
def test_what_is_no_fingerprint(home, given):
    with pytest.raises(InputError, match=r"policy.revoked must list fingerprints of 13 groups of four"):
        revoke(home, given)


def test_check_and_approve_name_the_peer(home, study, tmp_path, monkeypatch, capsys):
    revoke(home, SiteHome.load(tmp_path / "sites" / "s3").card().fingerprint)
    for command in (["check", str(home.folder), "--study", str(tmp_path)], ["approve", str(tmp_path)]):
        where = [] if command[0] == "check" else ["--site", str(home.folder)]
        done = run_main(["site", *command, *where], monkeypatch, capsys)
        assert done.returncode == 2
        assert "site s3 of the study has a key that this site revoked" in done.stderr


# Rotation


def test_what_was_spent_carries_over(home):
    before, old = spend(home), home.identity()
    copy = shutil.copy(home.ledger_path, home.folder / "copy")
    changed = rotate_key(home)
    assert changed.old.public_key == old.public_key != changed.new.public_key == home.identity().public_key
    assert home.card_path.read_text() == f"{changed.new.card}\n"
    assert changed.aside.name == f"identity-{old.fingerprint.replace(' ', '')}.pem"
    assert changed.aside.stat().st_mode & 0o777 == home.identity_path.stat().st_mode & 0o777 == 0o600
    assert Identity.load(changed.aside).public_key == old.public_key
    with home.open_ledger() as ledger:
        assert (ledger.totals(), list(ledger.outbox())) == before
    shutil.copy(copy, home.ledger_path)
    with pytest.raises(RestoredError, match="older copy was restored"):
        home.totals()


def test_twice(home):
    before = spend(home)
    assert rotate_key(home).new == rotate_key(home).old
    with home.open_ledger() as ledger:
        assert (ledger.totals(), list(ledger.outbox())) == before


def test_a_site_that_never_spent_begins_no_ledger(home):
    old = home.identity().public_key
    assert rotate_key(home).new.public_key == home.identity().public_key != old
    assert not home.ledger_path.exists()


def test_not_while_it_takes_part(home, study):
    approve(home, study)
    with taking_part(home, study), pytest.raises(InputError, match="is taking part in a run"):
        rotate_key(home)
    rotate_key(home)


def test_studies_of_the_old_key_are_named_and_refused(home, study, monkeypatch, capsys):
    approve(home, study)
    old = home.card()
    assert bound_studies(home) == ["A small study"]
    done = run_main(["site", "rotate-key", str(home.folder), "--yes"], monkeypatch, capsys)
    assert done.returncode == 0
    assert "'A small study' names the current key: unless it has finished, it cannot continue" in done.stdout
    assert old.fingerprint in done.stdout
    assert home.card().fingerprint in done.stdout
    assert bound_studies(home) == []
    (found,) = problems(home, study)
    assert "the study lists a different key for this site" in found


def test_a_full_disk_is_told_and_the_same_command_goes_on(home, monkeypatch):
    before = spend(home)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SiteHome, "write_card", full)
        with pytest.raises(
            InputError, match="No space left on device; run the same command again to continue"
        ):
            rotate_key(home)
    rotate_key(home)
    with home.open_ledger() as ledger:
        assert (ledger.totals(), list(ledger.outbox())) == before
