"""Whatever is edited, removed, inserted, reordered or restored is noticed, and the entry is named."""

from __future__ import annotations

import hashlib
import math
import os
import random
import shutil
import sqlite3
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.errors import CapedjicaError
from capedjica.privacy.ledger import (
    HEAD_BYTES,
    LedgerError,
    RestoredError,
    SlotBurntError,
    StorageError,
    TamperedError,
)
from capedjica.privacy.ledger.entry import COLUMNS, Entry, encode
from tests.privacy.ledger.ledger_site import STUDY, Site, ask, begin, refuse_to_make, verify_with


def fail_to_make() -> bytes:
    raise RuntimeError


@pytest.fixture
def site(tmp_path):
    """A site whose ledger has every kind of entry of a study's life."""
    made = Site(tmp_path)
    with made.open() as ledger:
        begin(ledger)
        ask(ledger, 0, mu=0.1)
        ask(ledger, 1, mu=0.2)
        with pytest.raises(RuntimeError):
            ask(ledger, 2, make_message=fail_to_make)
        ledger.record_abort(STUDY, 0, 0, 1, "a site vanished")
        ledger.revoke(STUDY, "the end")
    return made


def edits(value: Any) -> list[Any]:
    """Other values for a field: each byte of it changed in turn, or a scalar near it."""
    match value:
        case None:
            return [b"", 0, "", 0.0]
        case bytes():
            flipped = [value[:i] + bytes([value[i] ^ 1]) + value[i + 1 :] for i in range(len(value))]
            return [*flipped, value[:-1], value + b"\0", None]
        case str():
            changed = [value[:i] + chr(ord(value[i]) ^ 1) + value[i + 1 :] for i in range(len(value))]
            return [*changed, value[:-1], value + " ", value + "\0"]
        case float():
            return [value * (1 + 2**-52), value / 2, 0.0, None]
        case int():
            return [value + 100, value - 100, 1 << 62, None]


def try_edit(site: Site, table: str, column: str, seq: int, other: Any) -> Any:
    """Write another value into one field; return what stood there, or None if SQLite did not take it."""
    with site.raw() as raw:
        (before,) = raw.execute(f"SELECT {column} FROM {table} WHERE seq = ?", (seq,)).fetchone()
        try:
            raw.execute(f"UPDATE {table} SET {column} = ? WHERE seq = ?", (other, seq))
        except sqlite3.Error:
            return None
        where = (other if column == "seq" else seq,)
        (after,) = raw.execute(f"SELECT {column} FROM {table} WHERE seq = ?", where).fetchone()
    return None if (type(after), after) == (type(before), before) else (before,)


def fields_of(site: Site) -> list[tuple[str, str, int, Any]]:
    with site.raw() as raw:
        rows = raw.execute("SELECT * FROM entry").fetchall()
        messages = raw.execute("SELECT * FROM message").fetchall()
    entries = [("entry", c, row[0], value) for row in rows for c, value in zip(COLUMNS, row, strict=True)]
    return entries + [("message", "sealed", seq, sealed) for seq, sealed in messages]


def notice_every_edit(site: Site, step: int) -> int:
    """Make every ``step``-th edit, see that it is noticed with its entry's number, and take it back."""
    tries = [(*place, other) for *place, value in fields_of(site) for other in edits(value)]
    noticed = 0
    with site.open() as ledger:
        n_entries = ledger.verify_chain()
        for table, column, seq, other in tries[::step]:
            before = try_edit(site, table, column, seq, other)
            if before is not None:
                now = other if column == "seq" else seq
                with pytest.raises(TamperedError, match=rf"entry ({seq}|{now})\b"):
                    ledger.verify_chain()
                try_edit(site, table, column, now, *before)
                noticed += 1
        assert ledger.verify_chain() == n_entries
    return noticed


def test_edits_of_any_field_are_noticed(site):
    assert notice_every_edit(site, step=5) > 300


@pytest.mark.full
def test_every_edit_of_every_byte_is_noticed(site):
    assert notice_every_edit(site, step=1) > 1500


def test_an_edited_charge_is_noticed_when_the_ledger_is_opened(site):
    try_edit(site, "entry", "mu2", 4, 0.0)
    with pytest.raises(TamperedError, match=r"entry 4 .* was edited"):
        site.open()


def rechain(site: Site, change) -> None:
    """Rewrite all entries after a change, with hashes that fit: all an intruder without keys can do."""
    with site.raw() as raw:
        entries = [Entry(*row) for row in raw.execute("SELECT * FROM entry ORDER BY seq")]
        raw.execute("DELETE FROM entry")
        previous = bytes(32)
        for number, entry in enumerate(change(entries), start=1):
            linked = replace(entry, seq=number, previous=previous)
            linked = linked.chained(entry.digest)
            previous = linked.hash
            values = [getattr(linked, column) for column in COLUMNS]
            raw.execute(f"INSERT INTO entry VALUES ({', '.join('?' * len(values))})", values)


CHANGES = {
    "a charge made smaller": lambda e: [replace(x, mu2=x.mu2 and x.mu2 / 4) for x in e],
    "the last entry removed": lambda e: e[:-1],
    "an entry removed": lambda e: e[:5] + e[6:],
    "an entry inserted": lambda e: [*e[:6], e[6], replace(e[6], slot=9), *e[7:]],
    "two entries swapped": lambda e: [*e[:3], e[4], e[3], *e[5:]],
    "all but the first removed": lambda e: e[:1],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_chain_made_anew_does_not_fit_the_signed_head(site, change):
    rechain(site, change)
    with pytest.raises(TamperedError, match="head"):
        site.open()


def test_rechaining_alone_is_not_what_is_noticed(site):
    rechain(site, lambda entries: entries)
    with site.open() as ledger:
        ledger.verify_chain()


OTHERS = "kind, time_us, study, block, attempt, 7, request, mu2, detail, previous, digest"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DELETE FROM entry WHERE seq = 5", "entry 5 .* missing"),
        ("DELETE FROM entry", "entry 1 .* missing"),
        ("UPDATE entry SET seq = -seq WHERE seq = 5", "entry -5 is in its place"),
        (f"INSERT INTO entry SELECT 9, {OTHERS}, zeroblob(32) FROM entry WHERE seq = 4", "entry 9 .* edited"),
        (f"INSERT INTO entry SELECT 0, {OTHERS}, zeroblob(32) FROM entry WHERE seq = 4", "entry 0 is in"),
    ],
)
def test_crude_changes_are_told_when_opening(site, sql, told):
    with site.raw() as raw:
        raw.execute(sql)
    with pytest.raises(TamperedError, match=told):
        site.open()


@pytest.mark.parametrize("seq", range(1, 9))
def test_an_entry_with_a_hash_made_to_fit_breaks_the_link_to_the_next(site, seq):
    """The last entry is as it was, so the head says nothing; the links do."""
    with site.raw() as raw:
        entry = Entry(*raw.execute("SELECT * FROM entry WHERE seq = ?", (seq,)).fetchone())
        forged = replace(entry, time_us=entry.time_us + 1).chained(entry.digest)
        values = (forged.time_us, forged.hash, seq)
        raw.execute("UPDATE entry SET time_us = ?, hash = ? WHERE seq = ?", values)
    told = rf"entry {seq + 1} .* does not follow entry {seq}\b" if seq < 8 else "entry 8 .* head"
    with pytest.raises(LedgerError, match=told if seq > 1 else "key"):
        site.open()


def test_swapped_rows_are_told(site):
    with site.raw() as raw:
        for old, new in [(4, 99), (5, 4), (99, 5)]:
            raw.execute("UPDATE entry SET seq = ? WHERE seq = ?", (new, old))
    with pytest.raises(TamperedError, match=r"entry 4 .* moved"):
        site.open()


def test_messages_removed_inserted_or_exchanged_are_told(site):
    with site.open() as ledger:
        with site.raw() as raw:
            raw.execute("INSERT INTO message VALUES (6, x'00')")
        with pytest.raises(TamperedError, match="message 6"):
            ledger.verify_chain()
        with site.raw() as raw:
            raw.execute("DELETE FROM message WHERE seq = 6")
            for old, new in [(4, 99), (5, 4), (99, 5)]:
                raw.execute("UPDATE message SET seq = ? WHERE seq = ?", (new, old))
        with pytest.raises(TamperedError, match="message of entry 4"):
            ledger.verify_chain()
        with site.raw() as raw:
            raw.execute("DELETE FROM message WHERE seq = 4")
        with pytest.raises(TamperedError, match=r"message of entry 4 .* removed"):
            ledger.verify_chain()


def test_a_message_is_bound_to_its_entry(site):
    """With digest and chain made to fit, a ciphertext moved to another entry still does not open."""
    with site.raw() as raw:
        (sealed,) = raw.execute("SELECT sealed FROM message WHERE seq = 4").fetchone()
        raw.execute("UPDATE message SET sealed = ? WHERE seq = 5", (sealed,))
    digest = hashlib.sha256(sealed).digest()
    rechain(site, lambda entries: [*entries[:4], replace(entries[4], digest=digest), *entries[5:]])
    os.remove(site.head_path)
    with site.open(rebuild_head=True) as ledger:
        outbox = ledger.outbox()
        next(outbox)
        with pytest.raises(TamperedError, match=r"entry 5 .* cannot be unsealed"):
            next(outbox)


def test_triggers_forbid_changes_and_their_absence_is_noticed(site):
    connection = sqlite3.connect(site.path)
    for sql in (
        "UPDATE entry SET mu2 = 0",
        "DELETE FROM entry",
        "UPDATE message SET sealed = x''",
        "DELETE FROM message",
        "INSERT OR REPLACE INTO message VALUES (4, x'00')",
        "INSERT OR REPLACE INTO entry SELECT * FROM entry WHERE seq = 4",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(sql)
    connection.rollback()
    connection.execute("DROP TRIGGER entry_update")
    connection.commit()
    connection.close()
    with pytest.raises(TamperedError, match="triggers"):
        site.open()


# Older copies


def test_an_older_copy_is_noticed_by_the_head(tmp_path):
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        ask(ledger, 0)
        shutil.copy(site.path, tmp_path / "backup")
        ask(ledger, 1)
    shutil.copy(tmp_path / "backup", site.path)
    with pytest.raises(RestoredError, match=r"4 entries.*signed at entry 5.*older copy"):
        site.open()
    with pytest.raises(RestoredError):
        site.open(rebuild_head=True)


def test_an_older_copy_with_its_head_is_noticed_by_a_head_from_elsewhere(tmp_path):
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        shutil.copytree(tmp_path, tmp_path / "backup")
        ask(ledger)
        sent = ledger.head
        ledger.check_against(sent)
    with Site(tmp_path / "backup").open() as ledger:
        with pytest.raises(RestoredError, match="older copy"):
            ledger.check_against(sent)
        ledger.claim(STUDY, 1, 0)
        with pytest.raises(TamperedError, match="entry 4"):
            ledger.check_against(sent)


def test_a_copy_put_in_place_while_in_use_is_noticed(tmp_path):
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        ask(ledger, 0)
        older = site.path.read_bytes()
        ask(ledger, 1)
        site.path.write_bytes(older)
        with pytest.raises(RestoredError, match="while in use"):
            ask(ledger, 2, make_message=refuse_to_make)


def test_a_file_exchanged_while_in_use_is_not_written_to(tmp_path):
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        shutil.copy(site.path, tmp_path / "copy")
        os.replace(tmp_path / "copy", site.path)
        with pytest.raises(StorageError, match="moved or replaced"):
            ask(ledger)
        with pytest.raises(SlotBurntError):
            ask(ledger, make_message=refuse_to_make)
    with site.open() as ledger:
        assert ledger.verify_chain() == 3


@pytest.mark.parametrize("content", [None, b""])
def test_a_ledger_that_is_gone_while_its_head_is_there_is_not_started_anew(site, content):
    site.path.unlink()
    if content is not None:
        site.path.write_bytes(content)
    for rebuild in (False, True):
        with pytest.raises(RestoredError, match="missing or empty"):
            site.open(rebuild_head=rebuild)


# The head


def test_a_head_left_behind_by_a_crash_is_brought_up_to_date(tmp_path):
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        behind = site.head_path.read_bytes()
        ask(ledger, 0)
        site.head_path.write_bytes(behind)
        message = ask(ledger, 0, make_message=refuse_to_make)
        assert site.head_path.read_bytes() == ledger.head != behind
        site.head_path.write_bytes(behind)
    with site.open() as ledger:
        assert site.head_path.read_bytes() == ledger.head
        assert ask(ledger, 0, make_message=refuse_to_make) == message


def test_a_lost_head_is_refused_and_its_replacement_recorded(site):
    site.head_path.unlink()
    with pytest.raises(RestoredError, match="missing"):
        site.open()
    with site.open(rebuild_head=True) as ledger:
        assert ledger.entries()[-1].kind == "head-rebuilt"
    with site.open() as ledger:
        ledger.verify_chain()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_head_may_be_replaced(site, damage):
    """Cut, overwritten, or with another signature but of the right entry."""
    head = site.head_path.read_bytes()
    site.head_path.write_bytes(head[:64] + bytes(64) if damage is None else damage)
    with pytest.raises(TamperedError):
        site.open()
    with site.open(rebuild_head=True) as ledger:
        assert ledger.entries()[-1].kind == "head-rebuilt"


def test_a_head_that_speaks_of_more_is_not_replaced_whoever_signed_it(tmp_path):
    """So of a later key, when a backup brought back the earlier one."""
    site = Site(tmp_path)
    with site.open() as ledger:
        begin(ledger)
        older = site.path.read_bytes()
        ask(ledger, 0)
    site.path.write_bytes(older)
    later = site.head_path.read_bytes()
    site.head_path.write_bytes(later[:64] + bytes(64))
    for rebuild in (False, True):
        with pytest.raises(RestoredError, match="older copy was restored"):
            site.open(rebuild_head=rebuild)


def test_the_head_of_another_ledger_is_not_replaced(site, tmp_path):
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other")
    with other.open() as ledger:
        begin(ledger)
    theirs = other.head_path.read_bytes()
    site.head_path.write_bytes(theirs[:64] + bytes(64))
    for rebuild in (False, True):
        with pytest.raises(TamperedError, match="is not the one that"):
            site.open(rebuild_head=rebuild)
    assert site.head_path.read_bytes()[:64] == theirs[:64]


def test_a_crash_before_the_first_head_is_no_loss(tmp_path):
    site = Site(tmp_path)
    site.open().close()
    site.head_path.unlink()
    with site.open() as ledger:
        begin(ledger)


def test_a_head_of_another_site_or_ledger_is_refused(site, tmp_path):
    other = Ed25519PrivateKey.generate()
    (tmp_path / "other").mkdir()
    foreign = Site(tmp_path / "other")
    with foreign.open(sign=other.sign, verify=verify_with(other)) as ledger:
        theirs = ledger.head
    with site.open() as ledger, pytest.raises(TamperedError, match="not signed by this site"):
        ledger.check_against(theirs)
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "other").mkdir()
    with Site(tmp_path / "other").open() as ledger:
        ours_elsewhere = ledger.head
    with site.open() as ledger, pytest.raises(TamperedError, match="belongs to"):
        ledger.check_against(ours_elsewhere)
    site.head_path.write_bytes(ours_elsewhere)
    with pytest.raises(TamperedError, match="belongs to"):
        site.open()


@pytest.fixture(scope="module")
def open_ledger(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("site")).open() as ledger:
        yield begin(ledger)


@settings(deadline=None)
@given(data=st.binary(max_size=2 * HEAD_BYTES) | st.text() | st.integers(0, HEAD_BYTES - 1))
def test_no_bytes_but_a_head_pass_for_one(open_ledger, data):
    if isinstance(data, int):
        head = bytearray(open_ledger.head)
        head[data] ^= 1
        data = bytes(head)
    with pytest.raises(TamperedError):
        open_ledger.check_against(data)


def test_every_cut_of_the_head_file_is_refused(site):
    head = site.head_path.read_bytes()
    assert len(head) == HEAD_BYTES
    for size in range(0, HEAD_BYTES, 16):
        site.head_path.write_bytes(head[:size])
        with pytest.raises(TamperedError):
            site.open()


# The file as bytes


def outcome(site: Site, entries: list[Entry]) -> bool:
    """Open a damaged file: True if it was refused in one line, False if nothing that matters changed."""
    try:
        with site.open() as ledger:
            ledger.verify_chain()
            assert ledger.entries() == entries
            assert len(list(ledger.outbox())) == 2
    except CapedjicaError as error:
        return "\n" not in str(error)
    return False


def test_flipped_bytes_of_the_file_never_pass_or_crash(site):
    with site.open() as ledger:
        entries = ledger.entries()
    whole, head = site.path.read_bytes(), site.head_path.read_bytes()
    used = [i for i, byte in enumerate(whole) if byte]  # most of a page is empty
    refused = 0
    for position in random.Random(5).sample(used, 300):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        site.path.write_bytes(damaged)
        refused += outcome(site, entries)
        site.head_path.write_bytes(head)
    assert refused > 200


def test_a_truncated_file_is_refused(site):
    with site.open() as ledger:
        entries = ledger.entries()
    whole = site.path.read_bytes()
    for size in [0, 1, 15, 99, 100, 511, *range(4096, len(whole), 4096), len(whole) - 1]:
        site.path.write_bytes(whole[:size])
        assert outcome(site, entries), size


# The encoding under the chain

# Few and short values, so that moved boundaries and exchanged types come up.
_VALUES = (
    st.none()
    | st.integers(-1, 1)
    | st.sampled_from([0.0, -0.0, 1.0, math.inf])
    | st.text("a\0", max_size=2)
    | st.binary(max_size=2)
)


@settings(deadline=None, max_examples=300)
@given(st.lists(_VALUES, max_size=3), st.lists(_VALUES, max_size=3))
def test_different_fields_never_encode_alike(one, two):
    def exact(values: list[Any]) -> list[Any]:
        return [(type(v), repr(v)) for v in values]

    assert (encode(tuple(one)) == encode(tuple(two))) == (exact(one) == exact(two))


def test_the_encoding_of_schema_1_stays_as_it_is():
    detail = '{"participants":["a"],"what":"x","numbers":1}'
    entry = Entry(7, "release", 17 * 10**14, b"\1" * 32, 2, 1, 5, b"\2" * 32, 0.25, detail, b"\3" * 32)
    bound = hashlib.sha256(entry.binding()).hexdigest()
    assert bound == "adb22f36fc0a123e653c9efdff8c37ce894082229714d890b8fac1f6c1951931"
    linked = entry.chained(b"\4" * 32).hash.hex()
    assert linked == "5bbbced8487ed1e02db8d27fd376dcbf7f91c978cfca6de5ca9c1f80e7845a5a"
