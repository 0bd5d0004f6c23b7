"""A new key takes over a ledger: what was spent and sent stays to the last bit; only the new key goes on."""

import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capedjica.errors import InputError
from capedjica.privacy.ledger import RestoredError, StorageError, TamperedError, WrongKeyError, keys
from tests.privacy.ledger.ledger_site import _IDENTITY, STORAGE_KEY, STUDY, Site, ask, begin, verify_with

OLD = _IDENTITY.public_key().public_bytes_raw()


class Key:
    """A key that comes after the site's first."""

    def __init__(self, number):
        self.private = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        self.storage = bytes([number]) * 32
        self.public = self.private.public_key().public_bytes_raw()

    @property
    def opens(self):
        return {
            "storage_key": self.storage,
            "sign": self.private.sign,
            "verify": verify_with(self.private),
        }


NEW, NEWER = Key(1), Key(2)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def spent(site):
    """A ledger with two releases; what it says before its key changes."""
    with site.open() as ledger:
        begin(ledger)
        ask(ledger, 0)
        ask(ledger, 1, mu=0.1234567)
        return ledger.totals(), list(ledger.outbox()), ledger.entries()


def hand_over(site, new=NEW, old=OLD, **opens):
    with site.open(**opens) as ledger:
        ledger.change_key(storage_key=new.storage, old=old, new=new.public)


def test_everything_carries_over_to_the_last_bit(site, spent):
    hand_over(site)
    with site.open(**NEW.opens) as ledger:
        assert (ledger.totals(), list(ledger.outbox())) == spent[:2]
        assert ledger.entries()[:-1] == spent[2]
        assert ledger.verify_chain() == len(spent[2]) + 1
        # The same request again gets the stored bytes, sealed under the old key.
        assert ask(ledger, 0) == spent[1][0].message
        ledger.claim(STUDY, 1, 0)
        message = ask(ledger, 0, block=1)
    with site.open(**NEW.opens) as ledger:
        assert [sent.message for sent in ledger.outbox()] == [*(sent.message for sent in spent[1]), message]


def test_keys_follow_one_another(site, spent):
    hand_over(site)
    hand_over(site, NEWER, NEW.public, **NEW.opens)
    with site.open(**NEWER.opens) as ledger:
        assert (ledger.totals(), list(ledger.outbox())) == spent[:2]
        ledger.verify_chain()


def test_the_old_key_opens_it_no_more(site, spent):
    hand_over(site)
    with pytest.raises(WrongKeyError, match="whose key was changed on 20"):
        site.open()
    with pytest.raises(WrongKeyError):
        site.open(**NEWER.opens)
    # Nor with a storage key that fits and an identity that does not.
    site.open(**NEW.opens).close()
    with pytest.raises(TamperedError, match="was not signed by this site"):
        site.open(storage_key=NEW.storage)


def test_whoever_has_it_open_with_the_old_key_is_refused(site, spent):
    with site.open() as other:
        hand_over(site)
        for attempt in (other.totals, lambda: ask(other, 2), lambda: other.claim(STUDY, 1, 0)):
            with pytest.raises(WrongKeyError, match="changed while in use"):
                attempt()
    with site.open(**NEW.opens) as ledger:
        assert ledger.totals() == spent[0]


def test_the_ledger_is_closed_by_the_change(site, spent):
    with site.open() as ledger:
        ledger.change_key(storage_key=NEW.storage, old=OLD, new=NEW.public)
        with pytest.raises(StorageError, match="is closed"):
            ledger.totals()


def test_heads_of_the_old_key_stay_true(site, spent):
    with site.open() as ledger:
        before = ledger.head
    hand_over(site)
    # The change was the last thing that happened: the head in the second place is still the old one.
    assert site.head_path.read_bytes() == before
    with site.open(**NEW.opens) as ledger:
        assert site.head_path.read_bytes() == ledger.head != before
        ledger.check_against(before)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_older_copy_is_noticed(site, spent, tmp_path, moment):
    """A copy from before the change of key, and one from after it, when both are older than the head."""
    if moment == "before":
        shutil.copy(site.path, tmp_path / "copy")
    hand_over(site)
    with site.open(**NEW.opens) as ledger:
        if moment == "after":
            shutil.copy(site.path, tmp_path / "copy")
        ledger.claim(STUDY, 1, 0)
    shutil.copy(tmp_path / "copy", site.path)
    with pytest.raises(RestoredError, match="older copy was restored"):
        site.open(**NEW.opens)


def test_the_old_key_signs_no_head_after_the_change(site, spent):
    """Whoever stole the old key cannot vouch for a ledger that goes on under the new one."""
    hand_over(site)
    with site.open(**NEW.opens) as ledger:
        entry = ledger.entries()[-1]
    head = site.head_path.read_bytes()
    forged = head[:-64] + _IDENTITY.sign(head[:-64])
    assert entry.seq.to_bytes(8, "big") in forged
    site.head_path.write_bytes(forged)
    with pytest.raises(TamperedError, match="was not signed by this site"):
        site.open(**NEW.opens)


def test_a_change_that_nobody_agreed_to(site, spent):
    hand_over(site)
    with site.raw() as file:
        row = file.execute("SELECT detail FROM entry WHERE kind = 'key'").fetchone()[0]
        file.execute(
            "UPDATE entry SET detail = ? WHERE kind = 'key'", (row.replace(OLD.hex(), NEWER.public.hex()),)
        )
    with pytest.raises(TamperedError, match="edited or moved"):
        site.open(**NEW.opens)


def test_a_change_that_the_old_key_did_not_sign(site, spent, monkeypatch):
    """Chained and sealed as it should be, but signed by another: the chain has nothing to say against it."""
    with site.open() as ledger, monkeypatch.context() as lying:
        lying.setattr(keys, "verifies", lambda *_: True)
        lying.setattr(ledger._chain, "_sign", NEWER.private.sign)
        ledger.change_key(storage_key=NEW.storage, old=OLD, new=NEW.public)
    with pytest.raises(TamperedError, match="was not agreed to"):
        site.open(**NEW.opens)


def test_only_the_holder_of_the_old_key_hands_over(site, spent):
    with pytest.raises(InputError, match="not the key that signs this ledger"):
        hand_over(site, old=NEWER.public)
    with pytest.raises(InputError, match="must differ from the old key"), site.open() as ledger:
        ledger.change_key(storage_key=STORAGE_KEY, old=OLD, new=OLD)
    with site.open() as ledger:
        assert (ledger.totals(), ledger.entries()) == (spent[0], spent[2])


def test_no_key_is_shown_or_exported(site, spent, tmp_path):
    hand_over(site)
    with site.open(**NEW.opens) as ledger:
        ledger.export(tmp_path / "all.json", messages=True)
        shown = " ".join(map(repr, vars(ledger._chain).values()))
    text = (tmp_path / "all.json").read_text()
    assert '"key"' in text
    for key in (STORAGE_KEY, NEW.storage):
        assert key.hex() not in text
        assert repr(key) not in shown
        assert key not in site.path.read_bytes()


def test_notes_change_nothing(site, spent):
    with site.open() as ledger:
        ledger.note("a participant withdrew consent")
        ledger.note("another one", b"who it was")
        assert ledger.notes() == [("a participant withdrew consent", b""), ("another one", b"who it was")]
        assert b"who it was" not in site.path.read_bytes()
        assert ledger.totals() == spent[0]
        ledger.verify_chain()
        with pytest.raises(InputError, match="one line"):
            ledger.note("two\nlines")
