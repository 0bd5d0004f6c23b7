"""OpenDP's discrete Gaussian, exact as ours is, written in Rust."""

from __future__ import annotations

import functools
from importlib.metadata import version

import opendp.prelude as dp  # type: ignore[import-not-found]

from benchmarks.peers.serve import serve

COUNT = 20_000
SIGMAS = ("1", "1e+06")


def draw(sigma: float) -> None:
    """Add noise to a vector of zeros."""
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    dp.m.make_gaussian(*space, scale=sigma)([0] * COUNT)


if __name__ == "__main__":
    dp.enable_features("contrib")
    serve(version("opendp"), {sigma: functools.partial(draw, float(sigma)) for sigma in SIGMAS})
