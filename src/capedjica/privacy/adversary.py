r"""Against whom a guarantee holds, and against whom it does not: the one place that says it.

The adversary of CAPE is the aggregator, which sees every message, together with up to :math:`S_C` sites
(:mod:`capedjica.privacy.cape`). Every other site knows its own noise and reads the result, so with
:math:`S_C = 0` none of them is covered.

**One curious site at the noise of** :math:`S_C = 0`. Write :math:`x_i = w_i^2 t_i^2` for the part of site i
in the variance of the published mean. For :math:`S_C = 0` :func:`~capedjica.privacy.calibrate` makes all
:math:`x_i` equal, so of P sites one that takes its own noise off leaves (P - 1)/P of the variance: with masks
as wide as the ring

.. math:: \mu_{curious} = \mu \sqrt{P / (P - 1)} .                                               (1)

With the paper's masks only the second term of equation (3) of :mod:`capedjica.privacy.cape` grows, by the
same factor, so that (1) is an upper bound, for the aggregator together with that site too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy.gaussian import gaussian_epsilon
from capedjica.privacy.reserved_delta import RESERVED_DELTA

_OWN_SITE: Final = "the site that holds the data"


@dataclass(frozen=True)
class Adversary:
    """Whom a guarantee covers.

    Attributes
    ----------
    against, not_against : str
        In words, to follow "against" and "NOT against".
    aggregator : bool
        Whether the aggregator, which sees every message, is covered.
    n_sites : int
        How many of the other sites are covered together, with the aggregator if it is; 0 for none.
    """

    against: str
    not_against: str
    aggregator: bool
    n_sites: int

    def __str__(self) -> str:
        return f"against {self.against}, but NOT against {self.not_against}"


def adversary(
    mechanism: str, n_sites: int, n_colluding: int, alone: str = "", secure: bool = True
) -> Adversary:
    """Return against whom the guarantee of a mechanism holds.

    Parameters
    ----------
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How means are made private.
    n_sites, n_colluding : int
        S, and S_C for CAPE; the other mechanisms do not depend on it.
    alone : str
        The site that works alone under "local".
    secure : bool
        False if noise comes from a seed: then nobody is protected.
    """
    others = n_sites - 1
    if not secure:
        return Adversary("nobody", "anybody: the noise comes from a seed and can be taken off", False, 0)
    match mechanism:
        case "cape" if n_colluding == 0:
            return Adversary(
                "an aggregator that sees every message while no site sides with it, and anyone outside who "
                "reads the results",
                "any other site: it knows its own noise, reads the results and takes it off; nor against "
                f"{_OWN_SITE}",
                True,
                0,
            )
        case "cape" | "conventional":
            allies = n_colluding if mechanism == "cape" else others
            which = "all other sites" if allies == others else f"any {allies} of the {others} other sites"
            more = f"more than {allies} other site{'s' * (allies > 1)}"
            beyond = "" if allies == others else f"an aggregator together with {more}, or "
            return Adversary(
                f"an aggregator that sees every message, together with {which}, and anyone who reads the "
                "results",
                beyond + _OWN_SITE,
                True,
                allies,
            )
        case "local":
            site = f"site {alone}" if alone else "the one site that is used"
            return Adversary(
                f"anyone who sees what {site} sends (the other sites give nothing)",
                f"{site} itself",
                True,
                others,
            )
        case "pooled":
            return Adversary(
                "anyone who sees only the results",
                "the aggregator: it receives every site's sums as they are, and is trusted; nor against "
                f"{_OWN_SITE}",
                False,
                others,
            )
        case "none":
            return Adversary("nobody", "anybody: no noise is added", False, 0)
    raise InputError(f"mechanism must be one of cape, conventional, local, pooled, none; got {mechanism!r}")


def curious_site_mu(mu: float, n_participants: int) -> float:
    """Return mu against one curious site, where S_C = 0 and ``mu`` is that of the aggregator: equation (1).

    Infinite, which is an upper bound, for a single participant.
    """
    return mu * math.sqrt(n_participants / (n_participants - 1)) if n_participants > 1 else math.inf


def curious_site_epsilon(mu: float, n_participants: int, delta: float) -> float:
    """Return the epsilon of :func:`curious_site_mu`; an upper bound.

    What the grid adds to delta grows with mu, by less than a factor of 2: so much more is set aside.
    """
    return gaussian_epsilon(curious_site_mu(mu, n_participants), delta * (1 - 2 * RESERVED_DELTA))
