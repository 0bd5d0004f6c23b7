"""Differentially private decentralized joint ICA of fMRI data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capedjica.estimators import (
        CapeDJICA,
        CapePCA,
        GroupComparison,
        PaperOptions,
        PrivacyBudget,
        PrivateMean,
        PrivateResult,
        check_sensitivity,
        private_analysis,
        private_glm,
        private_mean,
    )

    __version__: str

__all__ = [
    "CapeDJICA",
    "CapePCA",
    "GroupComparison",
    "PaperOptions",
    "PrivacyBudget",
    "PrivateMean",
    "PrivateResult",
    "check_sensitivity",
    "private_analysis",
    "private_glm",
    "private_mean",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line should not wait for numba and numpy when it does not need them.
    if name in __all__:
        from capedjica import estimators

        return getattr(estimators, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("capedjica")
    raise AttributeError(f"module 'capedjica' has no attribute {name!r}")
