"""Scans in: where a site's subjects come from."""

from capedjica.data.scans import Problem
from capedjica.data.synthetic import SyntheticModel, SyntheticStudy, make_synthetic
from capedjica.data.timeseries import SubjectFiles

__all__ = ["Problem", "SubjectFiles", "SyntheticModel", "SyntheticStudy", "make_synthetic"]
