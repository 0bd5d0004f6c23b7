"""The uniform words of the noise source, which become ring masks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from capedjica.securesum.noise import NoiseSource

ALARM, CERTAIN = 1e-7, 1e-12
COUNT = 1 << 19


def byte_p_values(words: np.ndarray) -> np.ndarray:
    """Chi-square of each of the eight byte positions."""
    positions = words.view(np.uint8).reshape(-1, 8).T
    return np.array([stats.chisquare(np.bincount(position, minlength=256)).pvalue for position in positions])


def serial_p_value(words: np.ndarray) -> float:
    """Chi-square of the top four bits of pairs of neighbours."""
    top = (words >> np.uint64(60)).astype(np.int64)
    return float(stats.chisquare(np.bincount(16 * top[::2] + top[1::2], minlength=256)).pvalue)


def test_bytes_of_words_are_uniform() -> None:
    """Eight chi-squares at 1e-8 each: false alarm below 1e-7."""
    words = NoiseSource().uniform(COUNT)
    assert byte_p_values(words).min() > ALARM / 8
    stuck = words | np.where(np.arange(COUNT) % 20 == 0, np.uint64(1 << 17), np.uint64(0))
    assert byte_p_values(stuck).min() < CERTAIN


def test_a_modulo_bias_would_be_seen() -> None:
    """Words reduced modulo 3 * 2^62, the bias that rejection avoids, fail in the top byte."""
    biased = NoiseSource().uniform(COUNT) % np.uint64(3 << 62)
    assert byte_p_values(biased).min() < CERTAIN


def test_neighbouring_words_are_independent() -> None:
    """False alarm 1e-7."""
    words = NoiseSource().uniform(COUNT)
    assert serial_p_value(words) > ALARM
    repeated = words.copy()
    repeated[1::20] = repeated[::20][: repeated[1::20].size]
    assert serial_p_value(repeated) < CERTAIN


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_words_do_not_repeat(lag: int) -> None:
    """Two equal words among 2^19 have odds of 2^-27."""
    words = NoiseSource().uniform(COUNT)
    assert np.unique(words).size == COUNT
    assert not np.any(words[lag:] == words[:-lag])
