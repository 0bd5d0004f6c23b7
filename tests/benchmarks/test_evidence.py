"""Figures and the code they depend on: fingerprints, what a figure depends on, and what is made again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.evidence import code as fingerprints
from benchmarks.evidence.__main__ import main, stale
from benchmarks.evidence.catalogue import FIGURES, ONCE, Figure
from benchmarks.evidence.checking import NEGLIGIBLE, compare, gain_indices
from benchmarks.evidence.code import ROOT, code_of, fingerprint
from benchmarks.evidence.quotes import Quote, read_quotes
from benchmarks.evidence.stamps import changed, known_stale, origin, read, stamp
from benchmarks.utility.shared.runs import Row

CODE = '''
"""Module."""
import os  # for its path


def f(x: int) -> int:
    """Return more."""
    # Why: it is asked for.
    return x + 1


class Ä:
    """A class: ä."""

    name = "# not a comment"  # but this is: ä
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Module."""', '"""Another text,\nof two lines."""'),
        ("  # for its path", ""),
        ("    # Why: it is asked for.\n", ""),
        ('    """Return more."""\n', ""),
        ("\n\n\nclass", "\nclass"),
        ("# but this is: ä", "# and this is another"),
    ],
)
def test_wording_does_not_count(old: str, new: str) -> None:
    assert old in CODE
    assert fingerprint(CODE.replace(old, new)) == fingerprint(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("x + 1", "x + 2"), ("# not a", "# no"), ("import os", "import re"), ("name =", "other =")],
)
def test_code_counts(old: str, new: str) -> None:
    assert old in CODE
    assert fingerprint(CODE.replace(old, new)) != fingerprint(CODE)


def test_imports_are_followed() -> None:
    code = code_of(["benchmarks.utility.synthetic"])
    assert "src/capedjica/algorithms/ica/subject_level.py" in code  # by way of shared/problems.py
    assert "src/capedjica/mechanisms/release.py" in code
    assert not any(path.startswith("src/capedjica/web/") for path in code)
    assert "src/capedjica/mechanisms/release.py" not in code_of(
        ["benchmarks.utility.synthetic"], ("capedjica.mechanisms", "capedjica.engines")
    )


def test_what_decides_the_noise_counts_for_every_figure_of_quality() -> None:
    for name, figure in FIGURES.items():
        if name.startswith(("utility-", "findings-", "vary_")):
            code = figure.code()
            assert {"src/capedjica/mechanisms/release.py", "src/capedjica/privacy/cape.py"} <= code.keys(), (
                name
            )


def test_every_figure_is_in_the_catalogue() -> None:
    made = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for pattern in ("benchmarks/results/*.csv", "paper/results/*.csv", "docs/evidence/bench-*.txt")
        for path in ROOT.glob(pattern)
    }
    listed = {f"{figure.folder}/{figure.name}" for figure in FIGURES.values()}
    assert made == listed | {f"docs/evidence/{name}" for name in ONCE}


def test_a_stamp_tells_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "composition"
    said = stamp(base, "python -m paper.composition")
    assert re.fullmatch(r"commit ([0-9a-f]{10}\+?|unknown) of \d{4}-\d\d-\d\d", said)
    assert origin(base) == said
    figure = FIGURES["composition"]
    monkeypatch.setattr(Figure, "base", property(lambda _: base))
    assert changed(figure) == []
    code = read(base).code
    monkeypatch.setattr(Figure, "code", lambda _: {**code, "paper/composition.py": "0" * 16, "new.py": "1"})
    assert changed(figure) == ["new.py", "paper/composition.py"]


def test_what_has_no_stamp_has_an_unknown_origin(tmp_path: Path) -> None:
    assert origin(tmp_path / "utility-abide") == "unknown commit"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_of_the_code_of_today(name: str, request: pytest.FixtureRequest) -> None:
    """One that is made again leaves the list of those that are known to be stale: xfail is strict."""
    if why := known_stale().get(name):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    assert stale(FIGURES[name]) == [], f"python -m benchmarks.evidence make {name}"


def test_what_is_known_to_be_stale_is_a_figure() -> None:
    assert known_stale().keys() <= FIGURES.keys()


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        (("return", "return 1.0 *"), True),
        (('"""', '"""Other words: '), False),
        (("\ndef ", "\n# A comment.\ndef "), False),
    ],
    ids=["code", "docstring", "comment"],
)
def test_changed_code_makes_its_figures_stale_and_wording_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], noticed: bool
) -> None:
    """In a copy of the project the formula of cape's noise is changed."""
    for folder in ("src", "paper"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    figure, formula = FIGURES["composition"], tmp_path / "src/capedjica/privacy/cape.py"
    monkeypatch.setattr(fingerprints, "ROOT", tmp_path)
    monkeypatch.setattr("benchmarks.evidence.catalogue.ROOT", tmp_path)
    forget()
    stamp(figure.base, figure.command)
    assert changed(figure) == []
    text = formula.read_text(encoding="utf-8")
    assert change[0] in text
    formula.write_text(text.replace(*change, 1), encoding="utf-8")
    forget()
    try:
        assert changed(figure) == (["src/capedjica/privacy/cape.py"] if noticed else [])
    finally:
        forget()


def forget() -> None:
    """Read modules anew."""
    fingerprints._fingerprint_of.cache_clear()
    fingerprints._imports.cache_clear()


def test_status_lists_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    main(["status"])
    shown = capsys.readouterr().out
    assert all(f"  {name}  " in shown for name in FIGURES)


@pytest.mark.parametrize("quote", read_quotes(), ids=lambda quote: f"{quote.page}: {quote.figure}")
def test_pages_say_what_the_figures_show(quote: Quote) -> None:
    text = (ROOT / quote.page).read_text(encoding="utf-8")
    assert quote.filled(text) == text, "python -m benchmarks.evidence quote"


def test_a_quote_is_filled_in() -> None:
    quote = Quote(
        "README.md", "reaches {} at\nε = 1, {} at 3", "utility-start", "gain_index", [{"epsilon": "1"}] * 2
    )
    number = quote.numbers()[0]
    text = quote.filled("It reaches 9.99 at ε =\n1, 7 at 3; and 4.")
    assert text == f"It reaches {number} at ε =\n1, {number} at 3; and 4."
    with pytest.raises(LookupError, match="says 0 times"):
        quote.filled("It reaches more at ε = 1.")
    with pytest.raises(LookupError, match="no row with"):
        Quote("README.md", "{}", "utility-start", "gain_index", [{"epsilon": "7"}]).numbers()


def cells(shift: float = 0.0, n: int = 5, seed: int = 0) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {
        f"cell {number}": list(0.01 * number + shift + 0.01 * rng.standard_normal(n)) for number in range(30)
    }


def test_the_same_code_is_called_the_same() -> None:
    pairs = [(cells(seed=seed), cells(n=1, seed=1000 + seed)) for seed in range(200)]
    alarms = sum(bool(compare(*pair).different) for pair in pairs)
    assert alarms <= 3  # odds of 0.002 each: more than three of 200 once in 1,000 times


def test_what_has_no_gain_index_is_not_compared() -> None:
    rows = [
        Row("all", 8, method, "none", None, "truth", 0, value, 0.5, 0, 0.0)
        for method, value in (("an analysis", 0.1), ("a correlation", float("nan")))
    ]
    assert list(gain_indices(rows).values()) == [[0.1]]


@pytest.mark.parametrize("shift", [0.02, -0.02])
def test_another_result_is_noticed(shift: float) -> None:
    found = compare(cells(), cells(shift, n=1, seed=1))
    assert "all together" in found.different


def test_one_cell_that_differs_is_noticed() -> None:
    again = cells(n=1, seed=1)
    again["cell 3"] = [0.9]
    assert "cell 3" in compare(cells(), again).different


def test_results_without_spread_are_compared_too() -> None:
    shown = {"exact": [0.004] * 5}
    assert not compare(shown, {"exact": [0.004 + NEGLIGIBLE / 2]}).different
    assert compare(shown, {"exact": [0.004 + 2 * NEGLIGIBLE]}).different == ("exact", "all together")


def test_a_cell_that_is_not_shown_is_noticed() -> None:
    assert compare(cells(), {**cells(n=1), "another": [0.1]}).different == ("not shown: another",)
