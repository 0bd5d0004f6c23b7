"""Differentially private decentralized joint ICA of fMRI data."""

from importlib.metadata import version

__version__ = version("capedjica")
