"""Puts a clock into the hands of the parties, in every process whose PYTHONPATH has this folder.

They run no other class than their own, so the timed ones take the places of those where they are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PARTIES = "capedjica.study.federated.parties"


class _Timed(Loader):
    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        from benchmarks.timed_parties import TimedAggregator, TimedSite

        module.AggregatorParty, module.SiteParty = TimedAggregator, TimedSite  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _PARTIES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Timed(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
