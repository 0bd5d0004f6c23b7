"""Lets a ``sitecustomize``, which Python imports first of all, change a module once that is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# What the parties write down, and by what they answer.
AGGREGATOR = "capedjica.coordinator.run.journal"
SITE = "capedjica.site.agent.study_session"


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with the module of a name as soon as it is there, before anybody else sees it."""
    sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Changing(spec.loader, self._change)
        return spec


class _Changing(Loader):
    def __init__(self, real: Loader, change: Callable[[ModuleType], None]) -> None:
        self._real, self._change = real, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._change(module)
