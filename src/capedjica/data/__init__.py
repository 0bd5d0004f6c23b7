"""Scans in: where a site's subjects come from."""

from capedjica.data.synthetic import SyntheticStudy, make_synthetic

__all__ = ["SyntheticStudy", "make_synthetic"]
