"""FLARE is used as its documentation says: nothing of its inside is imported, replaced or named."""

import ast

import pytest

from tests.support.places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTED = ("nvflare.apis", "nvflare.lighter", "nvflare.fuel.flare_api")
INSIDE = ("nvflare.private", "nvflare.fuel.f3", "nvflare.fuel.hci", "nvflare.fuel.sec", "nvflare.security")
# What FLARE's documentation has people subclass.
MEANT_TO_BE_SUBCLASSED = {"nvflare.apis.executor.Executor", "nvflare.apis.impl.controller.Controller"}


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return what each name of a module stands for that was imported from FLARE."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if _within(one.name, ("nvflare",)):
                    names[one.asname or one.name.partition(".")[0]] = one.name
        elif isinstance(node, ast.ImportFrom) and node.module and _within(node.module, ("nvflare",)):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def _root(node: ast.AST) -> str:
    """Return the name at the beginning of a chain of attributes."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _targets(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Assign | ast.Delete):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def problems(source: str) -> list[str]:
    """Return how a module goes beyond FLARE's documented interface."""
    tree = ast.parse(source)
    names, found = _imported(tree), []
    found += [f"imports {name}" for name in names.values() if not _within(name, DOCUMENTED)]
    for node in ast.walk(tree):
        for target in _targets(node):
            if isinstance(target, ast.Attribute | ast.Subscript) and _root(target) in names:
                found.append(f"changes {ast.unparse(target)}")
        if isinstance(node, ast.Call) and _root(node.func) in ("setattr", "delattr", "import_module"):
            first = node.args[0] if node.args else node
            if _root(first) in names:
                found.append(f"changes {ast.unparse(first)}")
        if isinstance(node, ast.ClassDef):
            bases = {names[_root(base)] for base in node.bases if _root(base) in names}
            found += [f"subclasses {base}" for base in bases - MEANT_TO_BE_SUBCLASSED]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [f"names {part}" for part in INSIDE if part in node.value]
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_a_source_keeps_to_what_is_documented(file):
    assert problems(file.read_text(encoding="utf-8")) == []


def test_flare_is_used_at_all():
    """Otherwise there would be nothing to find."""
    used = {name for file in SOURCES for name in _imported(ast.parse(file.read_text())).values()}
    assert used >= MEANT_TO_BE_SUBCLASSED
    assert all(any(_within(name, (package,)) for name in used) for package in DOCUMENTED)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ("import nvflare.private.defs", "imports nvflare.private.defs"),
        ("import nvflare", "imports nvflare"),
        ("from nvflare import private", "imports nvflare.private"),
        ("from nvflare.fuel.f3.message import Message", "imports nvflare.fuel.f3.message.Message"),
        ("from nvflare.fuel.utils import fobs as f", "imports nvflare.fuel.utils.fobs"),
        ("from nvflare.apisx import y", "imports nvflare.apisx.y"),
        ("def f():\n    from nvflare.private.fed import x", "imports nvflare.private.fed.x"),
        ("from nvflare.apis import signal as s\ns.Signal.trigger = None", "changes s.Signal.trigger"),
        ("from nvflare.apis.signal import Signal\nSignal.x += 1", "changes Signal.x"),
        ("from nvflare.apis.signal import Signal\ndel Signal.x", "changes Signal.x"),
        ("from nvflare.apis.signal import Signal\nSignal.y['a'] = 1", "changes Signal.y['a']"),
        ("from nvflare.apis.signal import Signal\nsetattr(Signal, 'x', 1)", "changes Signal"),
        (
            "from nvflare.apis.fl_component import FLComponent\nclass A(FLComponent): pass",
            "subclasses nvflare.apis.fl_component.FLComponent",
        ),
        ("import_module('nvflare.private.fed')", "names nvflare.private"),
        ("x = {'path': 'nvflare.fuel.f3.drivers'}", "names nvflare.fuel.f3"),
    ],
)
def test_what_is_planted_is_noticed(planted, words):
    assert words in problems(planted)


@pytest.mark.parametrize(
    "planted",
    [
        "from nvflare.apis.executor import Executor\nclass A(Executor): pass",
        "from nvflare.apis.shareable import Shareable\nrequest = Shareable()\nrequest['x'] = 1",
        "from nvflare.lighter.provisioner import Provisioner",
    ],
)
def test_what_is_documented_is_left_alone(planted):
    assert problems(planted) == []
