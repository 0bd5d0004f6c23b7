"""The program of somebody who has a site's kit and not its identity: ours, without what it checks in itself.

Python imports this in every process whose PYTHONPATH has this folder.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder

_PARTIES = "capedjica.study.federated.parties"


def _disarm(parties) -> None:
    """Take part although the study names another key for this site."""
    from capedjica.securesum import site
    from capedjica.study import participation

    parties.terms_problems = participation.terms_problems = lambda home, study: []
    site._check_membership = lambda parameters, identity, name: None


class _Disarmed(Loader):
    def __init__(self, real) -> None:
        self._real = real

    def create_module(self, spec):
        return self._real.create_module(spec)

    def exec_module(self, module) -> None:
        self._real.exec_module(module)
        _disarm(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != _PARTIES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = _Disarmed(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
