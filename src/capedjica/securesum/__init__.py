"""The sum that nobody sees: secure aggregation in the ring of integers modulo 2^64, and its noise."""

from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.identity import Identity, PublicIdentity
from capedjica.securesum.parameters import Roster, SumParameters
from capedjica.securesum.register import BlockRegister
from capedjica.securesum.ring import FixedPoint
from capedjica.securesum.site import SiteSum

__all__ = [
    "AggregatorSum",
    "BlockRegister",
    "FixedPoint",
    "Identity",
    "PublicIdentity",
    "Roster",
    "SiteSum",
    "SumParameters",
]
