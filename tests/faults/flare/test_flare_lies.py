"""Sites of a study on FLARE that sign what is not true: left out and named, and nobody else with them."""

from __future__ import annotations

import json

import pytest

from tests.faults.flare.flare_faults import audit, command, gated

HONEST = ("s1", "s3", "s4")


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        pytest.param({"block": 2**40}, f"it claimed block {2**40}", id="block"),
        pytest.param({"spent": 0.9}, "it spent 0.9 of its budget", id="spent", marks=pytest.mark.full),
    ],
)
def test_a_site_that_lies_about_its_ledger_is_left_out_and_named(tmp_path, lie, words):
    with gated(tmp_path) as parties:
        parties.lie("s2", **lie)
        parties.run()
        audit(parties, HONEST)
        standing = json.loads((parties.run_folder.path / "standing.json").read_text())
        assert standing["liars"] == ["s2"]
        assert words in standing["reasons"]["s2"]
        assert standing["reasons"].keys() == {"s2"}
        assert words in parties.run_folder.log_path.read_text()
        assert "s2" in parties.privacy["statement"]
        assert command("status", parties.folder).returncode == 0
