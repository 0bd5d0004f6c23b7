"""The page on faults names every test of them, and which of them run only in the long run."""

import ast
import re

from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "faults" / "flare"
# About the tests themselves.
OTHERS = {"test_flare_marks.py", "test_result_audit.py"}


def is_full(node):
    return "pytest.mark.full" in {ast.unparse(decorator) for decorator in node.decorator_list}


def faults_tested():
    """Return the tests of faults, and of each whether it runs only in the long run."""
    found = {}
    for file in sorted(set(FOLDER.glob("test_*.py")) - {FOLDER / name for name in OTHERS}):
        tree = ast.parse(file.read_text("utf-8"))
        whole = any(ast.unparse(node) == "pytestmark = pytest.mark.full" for node in tree.body)
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        found |= {node.name: whole or is_full(node) for node in functions if node.name.startswith("test_")}
    return found


def test_the_page_names_every_test_of_a_fault():
    text = (ROOT / "docs" / "reference" / "faults.md").read_text("utf-8")
    named = {name: bool(star) for star, name in re.findall(r"(\*?)`(test_\w+)`", text)}
    there = faults_tested()
    # That the control of the weighing works is no fault.
    assert there.pop("test_what_grows_is_noticed")
    assert len(there) > 25
    assert named == there
