"""Every claim of the threat model names a test; here: the test exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tests_that_the_threat_model_names_exist():
    text = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", text)
    assert len(named) > 30
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
