"""Flower's SecAgg+ functions, called in the order in which its client calls them."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from numpy.typing import NDArray

from benchmarks.peers.serve import serve

PEERS, LENGTH = 9, 400_000
SITES, THRESHOLD = 100, 67
MODULUS = 1 << 32  # the default of its workflow

VALUES = np.random.default_rng(0).uniform(-8, 8, LENGTH)
QUANTISED = quantize([VALUES], 8.0, 1 << 22)
SECRET, _ = generate_key_pairs()
PUBLIC = [generate_key_pairs()[1] for _ in range(PEERS)]
SEED = os.urandom(32)
KEYS = [generate_shared_key(SECRET, public) for public in PUBLIC]


def add_masks(quantised: list[NDArray[Any]], keys: list[bytes]) -> list[NDArray[Any]]:
    """Add the mask of the site itself and those it shares with its peers."""
    shapes = [array.shape for array in quantised]
    masked = parameters_addition(quantised, pseudo_rand_gen(SEED, MODULUS, shapes))
    for place, key in enumerate(keys):
        operation = parameters_addition if place % 2 else parameters_subtraction
        masked = operation(masked, pseudo_rand_gen(key, MODULUS, shapes))
    return list(parameters_mod(masked, MODULUS))


def masks() -> None:
    """Expand ten masks and add them to quantised values."""
    add_masks(QUANTISED, KEYS)


def masked_input() -> None:
    """Quantise, agree on the keys, expand and add."""
    keys = [generate_shared_key(SECRET, public) for public in PUBLIC]
    add_masks(quantize([VALUES], 8.0, 1 << 22), keys)


def shamir() -> None:
    """Split one secret of 32 bytes for 100 sites and combine 67 of its shares."""
    shares = create_shares(SEED, THRESHOLD, SITES)
    assert combine_shares(shares[:THRESHOLD]) == SEED


if __name__ == "__main__":
    serve(version("flwr"), {"masks": masks, "masked input": masked_input, "shamir": shamir})
