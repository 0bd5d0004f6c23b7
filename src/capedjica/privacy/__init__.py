"""Privacy cost of releases: exact Gaussian differential privacy for everything the adversary sees.

``gaussian`` holds the exact trade-off curve of one release, ``cape`` the adversary's exact view in the CAPE
scheme and its calibration, ``accountants`` the composition of many releases, and ``paper`` the formulas of
the paper that are shown alongside the exact account.
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
