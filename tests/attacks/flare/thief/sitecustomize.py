"""The program of somebody who has a site's kit and not its identity: ours, without what it checks in itself.

Python imports this in every process whose PYTHONPATH has this folder.
"""

from __future__ import annotations

from benchmarks.after_import import SITE, after_import


def _disarm(party) -> None:
    """Take part although the study names another key for this site."""
    from capedjica.securesum import site
    from capedjica.site.approval import participation

    party.why_not = participation.why_not = lambda *_, **__: []
    site._check_membership = lambda parameters, identity, name: None


after_import(SITE, _disarm)
