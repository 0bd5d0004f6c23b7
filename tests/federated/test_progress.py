"""How far a run is, as another process reads it."""

import os

import pytest

from capedjica.coordinator.flare.progress import Reporter, read_progress
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.history import Event


@pytest.fixture
def reporter(sealed, tmp_path):
    lost = {}
    return Reporter(tmp_path, sealed[0], lambda: lost), lost


def test_a_run_that_was_not_begun_has_none(tmp_path):
    assert read_progress(tmp_path) is None
    assert read_progress(tmp_path / "absent") is None
    (tmp_path / "file").touch()
    assert read_progress(tmp_path / "file") is None


def test_what_is_written_is_read(reporter, tmp_path):
    told, lost = reporter
    told.write()
    assert (read_progress(tmp_path).phase, read_progress(tmp_path).n_done) == ("joining", 0)
    lost["s2"] = "no reply"
    told.event(Event("making masks", ("s1", "s3"), {}))
    told.write()
    found = read_progress(tmp_path)
    assert (found.doing, found.present, found.lost) == ("making masks", ("s1", "s3"), lost)
    told.end("complete")
    assert (read_progress(tmp_path).phase, read_progress(tmp_path).reason) == ("complete", "")


def test_a_run_that_stopped_says_why_sites_were_given_up(reporter, tmp_path):
    told, lost = reporter
    lost |= {"s2": "time limit exceeded", "s1": "it does not take part"}
    told.end("stopped", "2 sites answered, 3 are needed", 4)
    found = read_progress(tmp_path)
    words = "2 sites answered, 3 are needed. Lost sites: s1: it does not take part; s2: time limit exceeded"
    assert (found.reason, found.exit_code) == (words, 4)


def test_a_run_is_not_written_down_at_every_step(reporter, tmp_path, monkeypatch):
    """A fast run would spend its time on it."""
    told, _ = reporter
    writes = []
    monkeypatch.setattr(os, "replace", lambda *paths: writes.append(paths))
    for _ in range(1000):
        told.event(Event("asking", (), {}))
    assert 1 <= len(writes) < 100


def test_a_full_disk_stops_nothing(reporter, tmp_path, monkeypatch):
    told, _ = reporter

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    told.write()
    told.end("complete")
    assert read_progress(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{}", b'{"phase": "\xff"}', b'{"phase": "dancing"}', b"[" * 99_999]
)
def test_a_file_that_is_none_is_refused_in_words(tmp_path, content):
    (tmp_path / "progress.json").write_bytes(content)
    with pytest.raises(InputError, match=r"progress\.json is not a valid progress file of a run"):
        read_progress(tmp_path)
