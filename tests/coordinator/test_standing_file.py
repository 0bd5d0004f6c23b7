"""What a run remembers of its sites, on disk: whole, strict, and fair to those who were only away."""

import dataclasses
import json

import msgspec
import pytest

from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.site_standing import STANDING, open_standing
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.lost_sites import LEFT_OUT_AFTER
from capedjica.mechanisms.messages import VERSION, Status
from tests.coordinator.test_journal import CONTRACT

NAMES = CONTRACT.roster.names


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def greeting(**spent):
    claims = dict.fromkeys(NAMES, 0.0) | spent
    return {
        name: Status(VERSION, CONTRACT.hash, name, -1, part, b"", "embedded") for name, part in claims.items()
    }


def test_a_new_run_knows_nothing_and_writes_nothing(folder):
    standing = open_standing(folder, CONTRACT)
    assert (standing.block, standing.asked, standing.liars, standing.reasons) == (-1, {}, set(), {})
    assert not (folder.path / STANDING).exists()


def test_every_change_is_on_disk_at_once_and_read_again(folder):
    standing = open_standing(folder, CONTRACT)
    for change in (
        lambda: standing.begin(4),
        lambda: standing.ask(("s0", "s2"), 0.1),
        lambda: standing.ask(("s0", "s1"), 1 / 3),
        lambda: standing.fail({"s1": "no answer"}),
        lambda: standing.judge(CONTRACT, greeting(s3=0.9)),
    ):
        change()
        again = open_standing(folder, CONTRACT)
        kept = {"block", "asked", "liars", "reasons"}
        for name in kept:
            assert getattr(again, name) == getattr(standing, name)
    assert again.liars == {"s3"}
    assert again.reasons == {
        "s1": "no answer",
        "s3": "it says that it spent 0.9 of its budget; this run asked it for 0",
    }
    assert not [path for path in folder.path.iterdir() if path.name != STANDING]


def test_who_lied_stays_out_and_who_was_lost_may_come_back(folder):
    standing = open_standing(folder, CONTRACT)
    for _ in range(LEFT_OUT_AFTER):
        standing.fail({"s1": "no answer"})
    standing.judge(CONTRACT, greeting(s3=0.9))
    assert [name for name in NAMES if standing.leaves_out(name)] == ["s1", "s3"]
    again = open_standing(folder, CONTRACT)
    assert [name for name in NAMES if again.leaves_out(name)] == ["s3"]
    assert again.reasons["s1"] == "no answer"


GOOD = {"schema": 1, "block": 0, "asked": {"s0": 0.5}, "liars": ["s1"], "reasons": {"s1": "it lied"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a valid record of the sites of a run"),
        (b"[]", "is not a valid record of the sites of a run"),
        (b"\xff", "is not a valid record of the sites of a run"),
        (b"{}", "missing required field"),
        (GOOD | {"schema": 2}, "schema must be 1, got 2"),
        (GOOD | {"block": -2}, r"block"),
        (GOOD | {"asked": {"s0": -0.5}}, r"asked"),
        (GOOD | {"asked": {"s0": "much"}}, r"asked"),
        (GOOD | {"more": 1}, "unknown field"),
        (GOOD | {"liars": ["nobody"]}, "names 'nobody', which the roster of this study does not contain"),
        (GOOD | {"reasons": {"x\x1b[2J": "why"}}, r"names 'x\\x1b"),
        (json.dumps(GOOD)[:-9].encode(), "is not a valid record of the sites of a run"),
    ],
)
def test_a_damaged_file_is_named(folder, content, message):
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    (folder.path / STANDING).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        open_standing(folder, CONTRACT)
    assert str(folder.path / STANDING) in str(caught.value)


def test_a_file_that_cannot_be_written_stops_what_depends_on_it(folder):
    standing = open_standing(RunFolder(folder.path / "gone"), CONTRACT)
    with pytest.raises(InputError, match=r"standing\.json cannot be written"):
        standing.begin(0)


def test_what_is_good_is_read(folder):
    (folder.path / STANDING).write_bytes(msgspec.json.encode(GOOD))
    standing = open_standing(folder, dataclasses.replace(CONTRACT))
    assert standing.block == 0
    assert standing.leaves_out("s1")
