"""Replaced terms of the glossary, openings of module docstrings, and paths of documentation pages."""

import ast
import functools
import io
import re
import tokenize

import pytest

from tests.support.places import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TEMPLATES = sorted((ROOT / "src").rglob("*.jinja"))
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {GLOSSARY, ROOT / "CHANGELOG.md"})
QUESTION = re.compile(r"(What|Who|Whose|Whom|How|Whether|Where|When|Why)\b")
# Files that name pages of the documentation in comments, strings or text.
NAMING = ("src", "tests", "deploy", "benchmarks", "examples", "fuzz", "paper")


def replaced_terms(text):
    """Return the terms in the last column of the tables of a glossary."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [row[-1] for row in rows if row[-1].strip() != "instead of" and not set(row[-1]) <= set(" -:")]
    return sorted({term.strip() for cell in cells for term in cell.split(",") if term.strip()})


def without_code(text):
    """Return a docstring with names in double backticks, and names of parameters, blanked out."""
    return re.sub(r"``[^`]*``|^ *\w+ : ", lambda found: " " * len(found[0]), text, flags=re.M)


def pattern(term):
    """Match a term as whole words in either case, also across line breaks."""
    return re.compile(r"\b" + r"\s+".join(map(re.escape, term.split())) + r"\b", re.IGNORECASE)


def comments(source):
    """Yield blocks of consecutive comment lines with the line number of the first."""
    first, block, last = 0, [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if block and line != last + 1:
                yield first, "\n".join(block)
                block = []
            first = first if block else line
            block.append(re.sub(r"defence: \S+|noqa: .*", "", token.string.lstrip("#").strip()))
            last = line
    if block:
        yield first, "\n".join(block)


def strings(source):
    """Yield docstrings and string literals; words without spaces are identifiers, such as keys of JSON."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\s", node.value):
            yield node.lineno, without_code(node.value)


def template_text(source):
    """Return the text of a template with its expressions and statements blanked out."""
    return re.sub(
        r"\{\{.*?\}\}|\{%.*?%\}", lambda found: "\n" * found[0].count("\n") or " ", source, flags=re.S
    )


@functools.cache
def passages():
    """Return (file, line, text) of everything that is written for a reader."""
    found = []
    for path in SOURCES:
        source = path.read_text("utf-8")
        found += [(path, line, text) for line, text in [*comments(source), *strings(source)]]
    found += [(path, 1, template_text(path.read_text("utf-8"))) for path in TEMPLATES]
    found += [(path, 1, path.read_text("utf-8")) for path in PAGES]
    return found


def occurrences(term):
    """Return where a term occurs, as file:line."""
    return [
        f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, match.start())}"
        for path, line, text in passages()
        for match in pattern(term).finditer(text)
    ]


@pytest.mark.parametrize("term", replaced_terms(GLOSSARY.read_text("utf-8")))
def test_a_replaced_term_does_not_occur(term):
    assert occurrences(term) == []


def test_the_search_finds_what_it_should():
    assert replaced_terms("| term | instead of |\n|---|---|\n| a | b c, d |\n| e | |\n") == ["b c", "d"]
    assert pattern("left out").search("It was Left\n    out.")
    assert not pattern("liar").search("familiar, test_the_liar_goes")
    source = '# one\n# two\nx = 1  # three\n\ny = f"four {x} five"\nz = "six"\n'
    assert list(comments(source)) == [(1, "one\ntwo\nthree")]
    assert [text for _, text in strings(source)] == ["four ", " five"]
    assert template_text("a {{ b }} {# c #}\n{% d %}") == "a   {# c #}\n "
    assert len(replaced_terms(GLOSSARY.read_text("utf-8"))) > 20


def test_module_docstrings_open_with_a_statement():
    documented = [(path, ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "") for path in SOURCES]
    assert [str(path.relative_to(ROOT)) for path, text in documented if QUESTION.match(text)] == []


def test_pages_named_in_files_exist():
    found = []
    for path in (file for top in NAMING for file in (ROOT / top).rglob("*")):
        if path.suffix in {".py", ".md", ".jinja", ".yaml", ".service", ".toml"} or path.name == "Dockerfile":
            named = re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text("utf-8"))
            found += [(str(path.relative_to(ROOT)), page) for page in named if not (ROOT / page).is_file()]
    assert found == []
