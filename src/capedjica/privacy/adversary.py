r"""The threat model of each mechanism: the adversaries that a guarantee covers and those that it does not.

The adversary of CAPE is the aggregator, which sees every message, colluding with up to :math:`S_C` sites
(:mod:`capedjica.privacy.cape`). Every other site knows its own noise and reads the result, so with
:math:`S_C = 0` the guarantee holds against none of them.

**One curious site at the noise of** :math:`S_C = 0`. Write :math:`x_i = w_i^2 t_i^2` for the contribution of
site i to the variance of the published mean. For :math:`S_C = 0`, :func:`~capedjica.privacy.calibrate` makes
all :math:`x_i` equal. If one of P sites subtracts its own noise, (P - 1)/P of the variance is left, so with
masks uniform on the ring

.. math:: \mu_{curious} = \mu \sqrt{P / (P - 1)} .                                               (1)

With the paper's masks only the second term of equation (3) of :mod:`capedjica.privacy.cape` grows, by the
same factor. Equation (1) is then an upper bound, also for the aggregator colluding with that site.
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
    """The adversaries that a guarantee covers.

    Attributes
    ----------
    against, not_against : str
        Descriptions that complete the phrases "against ..." and "NOT against ...".
    aggregator : bool
        Whether the guarantee holds against the aggregator, which sees every message.
    n_sites : int
        Number of other sites that may collude (with the aggregator if ``aggregator``); 0 for none.
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
    """Return the adversaries that the guarantee of a mechanism covers.

    Parameters
    ----------
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        The privacy mechanism.
    n_sites, n_colluding : int
        S, and S_C for CAPE; the other mechanisms do not depend on S_C.
    alone : str
        The only site used by "local".
    secure : bool
        False if the noise comes from a seed; there is then no guarantee.
    """
    others = n_sites - 1
    if not secure:
        return Adversary("no one", "anyone: the noise comes from a seed and can be removed", False, 0)
    match mechanism:
        case "cape" if n_colluding == 0:
            return Adversary(
                "an aggregator that sees every message and colludes with no site, and anyone outside the "
                "study who reads the results",
                "any other site, which knows its own noise and can subtract it from the results, or "
                f"{_OWN_SITE}",
                True,
                0,
            )
        case "cape" | "conventional":
            allies = n_colluding if mechanism == "cape" else others
            which = "all other sites" if allies == others else f"any {allies} of the {others} other sites"
            more = f"more than {allies} other site{'s' * (allies > 1)}"
            beyond = "" if allies == others else f"an aggregator that colludes with {more}, or "
            return Adversary(
                f"an aggregator that sees every message and colludes with {which}, and anyone who reads the "
                "results",
                beyond + _OWN_SITE,
                True,
                allies,
            )
        case "local":
            site = f"site {alone}" if alone else "the only site used"
            return Adversary(
                f"anyone who sees what {site} sends (the other sites contribute nothing)",
                f"{site} itself",
                True,
                others,
            )
        case "pooled":
            return Adversary(
                "anyone who sees only the results",
                "the aggregator, a trusted curator that receives every site's sums without noise, or "
                f"{_OWN_SITE}",
                False,
                others,
            )
        case "none":
            return Adversary("no one", "anyone: no noise is added", False, 0)
    raise InputError(f"mechanism must be one of cape, conventional, local, pooled, none; got {mechanism!r}")


def curious_site_mu(mu: float, n_participants: int) -> float:
    """Return mu against one curious site when S_C = 0, from ``mu`` against the aggregator: equation (1).

    For a single participating site the result is infinite, which is an upper bound.
    """
    return mu * math.sqrt(n_participants / (n_participants - 1)) if n_participants > 1 else math.inf


def curious_site_epsilon(mu: float, n_participants: int, delta: float) -> float:
    """Return an upper bound on the epsilon that corresponds to :func:`curious_site_mu`.

    The grid's contribution to delta grows with mu by less than a factor of 2, so twice the usual part of
    delta is reserved.
    """
    return gaussian_epsilon(curious_site_mu(mu, n_participants), delta * (1 - 2 * RESERVED_DELTA))
