"""The sources of the documentation site: references are complete, examples named, numbers computed."""

import ast
import importlib
import inspect
import math
import os
import pkgutil
import re
import runpy
import sys
import tomllib

import msgspec
import pytest
from docutils.utils.math.latex2mathml import tex2mathml
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from typer.main import get_command

from capedjica.cli import app
from capedjica.mechanisms import messages
from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.securesum import messages as sum_messages
from capedjica.study.analyses import OWN
from tests.support.places import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
commands, formats, mathml, references = map(
    importlib.import_module, ("commands", "formats", "mathml", "references")
)
check_site = runpy.run_path(str(DOCS / "check_site.py"))

INTERFACES = (
    "capedjica",
    "capedjica.estimators",
    "capedjica.applications",
    "capedjica.data",
    "capedjica.extending",
    "capedjica.privacy",
)
# Values and types, which the reference describes in its text.
IN_TEXT = {"ACCOUNTANTS", "Progress", "Statistics"}
TOPICS = (
    "first_networks",
    "template",
    "guided",
    "group_comparison",
    "planning",
    "capepca",
    "glm_on_volumes",
    "comparing_mechanisms",
    "reading_a_report",
    "new_analysis",
)


def listed_names():
    """Yield the full names that the reference of the Python interface lists."""
    module = ""
    for line in (DOCS / "reference" / "api.rst").read_text("utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   [\w.]+", line):
            yield f"{module}.{line.strip()}"


def structs_of(page):
    """Return the classes that a page of formats shows."""
    text = (DOCS / "reference" / page).read_text("utf-8")
    found = re.findall(r"^```\{struct\} (.*)$", text, re.MULTILINE)
    return [pkgutil.resolve_name(name) for line in found for name in line.split()]


def test_the_configuration_can_be_read_and_its_packages_are_an_extra(monkeypatch):
    for name, value in (("OMP_NUM_THREADS", "1"), ("MPLBACKEND", "agg")):
        monkeypatch.setenv(name, os.environ.get(name, value))
    given = runpy.run_path(str(DOCS / "conf.py"))
    assert given["root_doc"] == "docs/index"
    assert not [name for name in given["extensions"] if "intersphinx" in name]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    names = {re.split("[<>=]", line)[0] for line in extras["docs"]}
    assert names == {"sphinx", "myst-parser", "numpydoc", "sphinx-gallery", "pydata-sphinx-theme"}


def test_every_public_name_is_in_the_reference():
    listed = [pkgutil.resolve_name(name) for name in listed_names()]
    for interface in INTERFACES:
        module = importlib.import_module(interface)
        missing = {name for name in module.__all__ if not any(getattr(module, name) is one for one in listed)}
        assert missing <= IN_TEXT, interface


def test_every_command_and_every_option_is_in_the_reference():
    text, found = commands.reference(), dict(commands.every_command(get_command(app)))
    assert len(found) > 40
    for name, command in found.items():
        level = "#" * (1 + len(name.split()))
        (section,) = re.findall(
            rf"^{level} {re.escape(name)}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE
        )
        assert " ".join((command.help or "").split())[:20] in section.replace("\\", "")
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.opts[0] in section, (name, option.opts)


@pytest.mark.parametrize("struct", structs_of("formats.md"), ids=lambda struct: struct.__name__)
def test_every_key_of_a_file_has_a_meaning(struct):
    known = formats.meanings(struct)
    assert [
        field.name for field in msgspec.inspect.type_info(struct).fields if not known.get(field.name)
    ] == []
    assert formats.section(f"{struct.__module__}.{struct.__name__}").count("\n| `") == len(
        struct.__struct_fields__
    )


def test_every_kind_of_analysis_and_every_message_is_on_its_page():
    assert set(OWN.values()) <= set(structs_of("formats.md"))
    every = {
        one
        for module in (messages, sum_messages)
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
    }
    assert every - set(structs_of("messages.md")) == {sum_messages.Message}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**63 - 1, "2⁶³ - 1"),
        (2**62, "2⁶²"),
        (16384, "2¹⁴"),
        (4096, "4096"),
        (10**9, "10⁹"),
        (-(10**12), "-10¹²"),
        (2.0**-60, "2⁻⁶⁰"),
        (0.5, "0.5"),
        (0, "0"),
    ],
)
def test_limits_are_written_as_powers(value, shown):
    assert formats._number(value) == shown


@given(st.integers(0, 2**70))
def test_a_limit_written_as_a_power_is_exact(value):
    shown = formats._number(value).translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"))
    if any(letter in formats._number(value) for letter in "⁰¹²³⁴⁵⁶⁷⁸⁹"):
        base, less = (2 if shown.startswith("2") else 10), shown.endswith(" - 1")
        power = shown.removesuffix(" - 1").removeprefix(str(base))
        assert base ** int(power) - less == value


def test_types_are_in_words():
    text = formats.section("capedjica.mechanisms.messages.Begin", own=True)
    assert "| `invited` | list (at most 4096 items) of: text (1 to 64 characters) | *required* |" in text
    assert "`version`" not in text
    assert "`version`" in formats.section("capedjica.mechanisms.messages.Begin")


def test_ten_examples_have_a_title_and_a_picture():
    examples = sorted((ROOT / "examples").glob("plot_*.py"))
    assert [path.stem.split("_", 2)[2] for path in examples] == list(TOPICS)
    for path in examples:
        text = path.read_text("utf-8")
        title, line, *_ = ast.get_docstring(ast.parse(text)).splitlines()
        assert len(title) == len(line) > 5
        assert set(line) == {"="}
        assert "subplots(" in text


def formulas():
    """Return every formula in a docstring of the package."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        found |= set(re.findall(r":math:`([^`]+)`", text))
        found |= {one.strip() for one in re.findall(r"\.\. math::(.*?)\n\s*\n", text, re.DOTALL)}
    return sorted(found)


def test_every_formula_can_be_drawn():
    found = formulas()
    assert len(found) > 300
    for formula in found:
        tex2mathml(mathml.in_known_words(formula), as_block=True)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README", "[a](examples)", "[a](docs/gallery/index.rst)"),
        ("docs/development/notes", "[a](../../benchmarks/results)", "[a](../reference/results.md)"),
        (
            "docs/development/notes",
            "[a](../../benchmarks/results/x.md)",
            "[a](../../benchmarks/results/x.md)",
        ),
        (
            "docs/index",
            "[a](evidence) [b](https://a.b/examples)",
            "[a](development/index.md) [b](https://a.b/examples)",
        ),
    ],
)
def test_links_to_folders_lead_to_pages(page, link, expected):
    source = [link]
    references.lead_to_pages(None, page, source)
    assert source == [expected]


def test_folders_with_pages_exist():
    assert all((ROOT / folder).is_dir() for folder in references.FOLDERS)


def test_links_to_folders_are_known():
    """Sphinx has no page for a folder: a link to one that is not known breaks the build."""
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            target = (page.parent / link).resolve()
            assert not target.is_dir() or str(target.relative_to(ROOT)) in references.FOLDERS, (page, link)


def test_broken_links_and_resources_of_the_network_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x">1</a><a href="b.html#y">2</a><img src="c.png">')
    (tmp_path / "b.html").write_text('<p id="y"><a href="https://x.org">1</a><a href="mailto:a@b">2</a>')
    (tmp_path / "c.png").touch()
    assert check_site["problems"](tmp_path) == []
    (tmp_path / "d.html").write_text(
        '<a href="#no"></a><a href="b.html#no"></a><a href="e.html"></a><img src="no.png">'
        '<script src="https://x.org/a.js"></script><link href="//x.org/a.css">'
    )
    (tmp_path / "a.css").write_text('@import url("https://x.org/font.css");')
    assert len(check_site["problems"](tmp_path)) == 7
    assert check_site["problems"](tmp_path / "nothing") != []


def rounded_up(value, digits):
    return math.ceil(value * 10**digits - 1e-9) / 10**digits


def test_the_numbers_of_the_page_about_epsilon_are_computed():
    text = (DOCS / "concepts" / "epsilon.md").read_text("utf-8")
    rows = re.findall(
        r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", text, re.MULTILINE
    )
    assert len(rows) == 7
    for row in rows:
        epsilon, *shown = map(float, row)
        mu = gaussian_mu(epsilon, 1e-5)
        exact = [norm.cdf(mu / 2), norm.cdf(norm.ppf(0.01) + mu), norm.cdf(norm.ppf(0.05) + mu)]
        assert shown == [rounded_up(mu, 3), *(rounded_up(100 * one, 1) for one in exact)]
    one = gaussian_mu(1, 1e-5)
    several = [gaussian_epsilon(factor * one, 1e-5) for factor in (math.sqrt(2), math.sqrt(10), 2)]
    together, ten, twice = (f"{rounded_up(epsilon, 2):.2f}" for epsilon in several)
    assert f"cost {together} together, ten cost {ten}" in text
    assert f"ε = {twice}." in text
    assert f"in at most {rounded_up(100 * norm.cdf(math.sqrt(10) * one / 2), 1)}% of games" in text
    assert f"e/(1 + e) = {rounded_up(100 * math.e / (1 + math.e), 1)}%" in text
