"""Reading, validation and simulation of fMRI data and participant tables."""

from capedjica.data.features import FeatureTable, open_features
from capedjica.data.layouts import find_people
from capedjica.data.participants import People
from capedjica.data.scans import Problem
from capedjica.data.simulated.synthetic import SyntheticModel, SyntheticStudy, make_synthetic

__all__ = [
    "FeatureTable",
    "People",
    "Problem",
    "SyntheticModel",
    "SyntheticStudy",
    "find_people",
    "make_synthetic",
    "open_features",
]
