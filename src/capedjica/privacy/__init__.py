"""What a release costs: exact Gaussian differential privacy for everything the adversary sees.

``gaussian`` has the exact trade-off of one release, ``cape`` the exact view in the CAPE scheme and its
calibration, ``accountants`` the total of many releases, ``paper`` those of the paper's formulas that
are shown beside the exact account.
"""

from capedjica.privacy.accountants import (
    ACCOUNTANTS,
    Accountant,
    ExactAccountant,
    MomentsAccountant,
    NaiveAccountant,
    RdpAccountant,
    Release,
    StrongAccountant,
    accountant,
)
from capedjica.privacy.cape import Cape, calibrate
from capedjica.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, pure_mu

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Cape",
    "ExactAccountant",
    "MomentsAccountant",
    "NaiveAccountant",
    "RdpAccountant",
    "Release",
    "StrongAccountant",
    "accountant",
    "calibrate",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "pure_mu",
]
