"""Differentially private decentralized joint ICA of fMRI data."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capedjica.estimators import CapeDJICA, CapePCA, PrivateMean, private_mean

__all__ = ["CapeDJICA", "CapePCA", "PrivateMean", "private_mean"]
__version__ = version("capedjica")


def __getattr__(name: str) -> Any:
    # On first use: the command line must not wait for compilers and arrays that it does not need.
    if name in __all__:
        from capedjica import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'capedjica' has no attribute {name!r}")
