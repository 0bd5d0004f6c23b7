"""One implementation of each concept: what is written a second time drifts apart from the first."""

import re

import pytest

from tests.support.places import ROOT

SOURCES = {
    str(path.relative_to(ROOT / "src" / "capedjica")): path.read_text()
    for path in (ROOT / "src" / "capedjica").rglob("*.py")
}
PLACES = {
    # A contract is drawn up by its terms, whoever asks: study.toml, estimators, plans.
    r"\bContract\(\n": {"mechanisms/terms.py"},
    r"^class Release\b": {"privacy/accountants.py"},
    # Drafts get their names here; the other one gives a new key the place of the old.
    r"\bos\.replace\(": {"tools/atomic_files.py", "site/key_rotation.py"},
    r"else ascii\(letter\)|isprintable\(\) else": {"tools/text.py"},
    r"^\w+ = NDArray\[np\.(float64|floating)\]$": {"tools/arrays.py", "algorithms/kernels.py"},
    r"^RESERVE\b": {"mechanisms/terms.py"},
    r"RdBu": {"report/pictures/slices.py"},
    r"is protected with": {"privacy/wording.py"},
    r"^def why_not\b": {"site/approval/admission.py"},
    r"1 - \w+\.reserve\b": {"mechanisms/contract.py"},
    r"2 \* n_sites // 3": {"securesum/parameters.py"},
    # The other one tells drafts of the living from those of the killed.
    r"\bfcntl\.flock\(": {"tools/locks.py", "tools/atomic_files.py"},
}


@pytest.mark.parametrize("pattern", PLACES)
def test_a_concept_has_one_place(pattern):
    found = {name for name, text in SOURCES.items() if re.search(pattern, text, re.MULTILINE)}
    assert found == PLACES[pattern]


def test_no_constant_has_the_old_name_of_several_meanings():
    assert not [name for name, text in SOURCES.items() if re.search(r"^PATIENCE\b", text, re.MULTILINE)]
