"""The noise source: exactness of every decision, keys, forks, threads, taint and refusals."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.securesum import noise
from capedjica.securesum.lazy_uniform import LazyUniform, exp_minus_bounds
from capedjica.securesum.noise import (
    GUARD,
    PROBABILITY_ERROR,
    NoiseSource,
    total_variation_bound,
)
from capedjica.securesum.stream import Keystream
from tests.securesum.grid_law import log_normaliser

SIGMAS = [5e-324, 0.01, 0.3, 0.5, 0.7072, 1.0, 1.4143, 10.0, 1e3, 1e6, 1e9, 2.0**40]
KEY = bytes(range(32))
ONES = 2**64 - 1


def no_more_words() -> int:
    raise AssertionError("the first 64 bits should have settled it")


def word_then_zeros(word: int) -> Callable[[], int]:
    words = itertools.chain([word], itertools.repeat(0))
    return lambda: next(words)


def exact_exp_minus(x: Fraction) -> mpmath.mpf:
    return mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)


@pytest.mark.parametrize("bits", [8, 64, 200])
def test_exponential_is_enclosed_tightly(bits: int) -> None:
    with mpmath.workdps(120):
        for x in [
            Fraction(0),
            Fraction(1, 10**9),
            Fraction(1, 3),
            Fraction(1),
            Fraction(355, 113),
            Fraction(150),
        ]:
            lower, upper = exp_minus_bounds(x, bits)
            assert lower <= exact_exp_minus(x) * 2**bits <= upper
            assert upper - lower <= 2


def test_lazy_uniform_draws_bits_until_it_knows() -> None:
    threshold = exp_minus_bounds(Fraction(1), 64)[0]
    assert LazyUniform(threshold - 1, no_more_words).below_exp_minus(Fraction(1))
    assert not LazyUniform(threshold + 1, no_more_words).below_exp_minus(Fraction(1))
    assert LazyUniform(threshold, lambda: 0).below_exp_minus(Fraction(1))
    assert not LazyUniform(threshold, lambda: ONES).below_exp_minus(Fraction(1))
    assert LazyUniform(ONES, no_more_words).below_exp_minus(Fraction(0))
    assert str(threshold) not in repr(LazyUniform(threshold, no_more_words))


def test_kernel_probability_is_within_its_proven_error() -> None:
    """The proof gives 12 * 2^-53 where the exponent is below 32; a degree-5 polynomial would miss it."""
    rng = np.random.default_rng(1)
    worst = 0.0
    with mpmath.workdps(60):
        for _ in range(4000):
            sigma = float(2 ** rng.uniform(-3, 40))
            scale = 1 << max(0, round(math.log2(sigma)))
            rest = int(rng.integers(scale))
            magnitude = rest + int(rng.integers(9)) * scale
            z = magnitude / Fraction(sigma) - Fraction(sigma) / scale
            exact = exact_exp_minus(Fraction(rest, scale) + z * z / 2)
            error = abs(noise._acceptance(rest, magnitude, sigma, scale) - exact)
            assert error < PROBABILITY_ERROR
            if exact > mpmath.exp(-31):
                worst = max(worst, float(error))
    assert 2.0**-56 < worst < 12 * 2.0**-53
    assert PROBABILITY_ERROR + 2.0**-53 < GUARD


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("guard", [2.0**-6, 2.0])
def test_exact_decisions_give_the_same_samples(sigma: float, guard: float) -> None:
    """A wide guard sends some or all trials to rational arithmetic; not one sample may change."""
    fast = noise._sample(Keystream(KEY), sigma, 300)
    assert np.array_equal(fast, noise._sample(Keystream(KEY), sigma, 300, guard=guard))


@pytest.mark.parametrize("k", [1, 2, 7, 44])
def test_undecided_decay_word_is_settled_by_further_bits(k: int) -> None:
    edge = exp_minus_bounds(Fraction(k), 64)[0]
    words = np.array([0, edge, 0], dtype=np.uint64)
    out = np.zeros(1, dtype=np.int64)
    assert noise._run_trials(words, 0, 1e6, 20, GUARD, out, 0) == (0, 0, True)
    assert noise._decide_exactly(words, 1e6, 20, word_then_zeros(0)) == k << 20
    assert noise._decide_exactly(words, 1e6, 20, word_then_zeros(ONES)) == (k - 1) << 20


def test_the_far_tail_of_the_decay_is_reached() -> None:
    """A decay word of zero stands for any exponent beyond 44; the next bits say which."""
    words = np.array([0, 0, 0], dtype=np.uint64)
    sample = noise._decide_exactly(words, 1e6, 20, word_then_zeros(1 << 40))
    assert sample == 60 << 20  # exp(-61) < 2^-88 < exp(-60)


def test_negative_zero_is_refused() -> None:
    words = np.array([1 << 63, ONES, 0], dtype=np.uint64)
    out = np.zeros(1, dtype=np.int64)
    assert noise._run_trials(words, 0, 1e6, 20, GUARD, out, 0) == (1, 0, False)
    assert noise._decide_exactly(words, 1e6, 20, no_more_words) is None


@pytest.mark.parametrize("sigma", [0.01, 0.3, 0.4, 0.5, 1.0, 1.414, 1.415, 3.0, 724.0, 1e9])
def test_trials_succeed_as_often_as_the_stream_bound_says(sigma: float) -> None:
    """Acceptance of `total_variation_bound`: 4e5 trials, six standard deviations (false alarm 2e-9 each)."""
    bits, trials = max(0, round(math.log2(sigma))), 400_000
    out = np.empty(trials, dtype=np.int64)
    _, filled, _ = noise._run_trials(Keystream(KEY).words(3 * trials), 0, sigma, bits, GUARD, out, 0)
    offset = sigma / 2**bits
    q = (1 - math.exp(-1)) / 2 * math.exp(log_normaliser(sigma) - offset**2 / 2) / 2**bits
    assert q >= 0.29
    assert abs(filled / trials - q) < 6 * math.sqrt(q * (1 - q) / trials)


def test_stream_bound_grows_with_the_square() -> None:
    assert total_variation_bound(0) == 0.0
    assert total_variation_bound(2_000_000) == 2_000_000**2 / 2**122
    assert total_variation_bound(10**12) < 1e-12
    assert total_variation_bound(2**62) == 1.0


def test_samples_and_words_have_the_stated_types() -> None:
    source = NoiseSource()
    assert source.secure
    assert source.uniform(5).dtype == np.uint64
    assert source.discrete_gaussian(2, 7).dtype == np.int64
    assert source.discrete_gaussian(np.float32(2.0), np.int32(7)).shape == (7,)
    assert source.discrete_gaussian(1.0, 0).size == source.uniform(0).size == 0


def test_tiny_sigma_is_all_zeros() -> None:
    assert not NoiseSource().discrete_gaussian(0.01, 10_000).any()


def test_two_sources_never_share_a_key() -> None:
    first_words = {int(NoiseSource().uniform(1)[0]) for _ in range(500)}
    assert len(first_words) == 500


def test_seed_is_reproducible_tainted_and_separated_by_purpose() -> None:
    def draw(seed: int, purpose: str = "") -> bytes:
        source = NoiseSource(insecure_noise_seed=seed, purpose=purpose)
        assert not source.secure
        return source.uniform(4).tobytes() + source.discrete_gaussian(100.0, 50).tobytes()

    assert draw(7) == draw(7)
    assert len({draw(7), draw(8), draw(7, "site-a"), draw(7, "site-b"), draw(77)}) == 5


def test_a_branch_has_a_stream_of_its_own() -> None:
    """Whatever a branch draws, and whenever, its source goes on as if there were none."""
    alone, trunk = (NoiseSource(insecure_noise_seed=7, purpose="site-a") for _ in range(2))
    branch = trunk.branch("masks")
    assert not branch.secure
    words = branch.uniform(100)
    assert trunk.uniform(50).tobytes() == alone.uniform(50).tobytes()
    branch.discrete_gaussian(100.0, 10)
    assert trunk.discrete_gaussian(9.0, 50).tobytes() == alone.discrete_gaussian(9.0, 50).tobytes()
    assert alone.branch("masks").uniform(100).tobytes() == words.tobytes()
    others = [
        alone,
        alone.branch("other"),
        NoiseSource(insecure_noise_seed=7, purpose="site-b").branch("masks"),
    ]
    assert all(int(other.uniform(1)[0]) != int(words[0]) for other in others)


def test_a_branch_without_a_seed_is_keyed_by_the_system() -> None:
    source = NoiseSource()
    assert source.branch("masks").secure
    assert len({int(source.branch("masks").uniform(1)[0]) for _ in range(100)}) == 100


def test_seeded_words_are_pinned() -> None:
    """A change of derivation would silently change every published experiment."""
    source = NoiseSource(insecure_noise_seed=0, purpose="vector")
    assert [int(word) for word in source.uniform(2)] == [3641206456525269183, 6110336313959638287]
    assert source.discrete_gaussian(1000.0, 4).tolist() == [475, -247, -644, 1179]


def test_repr_shows_no_secret() -> None:
    assert repr(NoiseSource()) == "NoiseSource(secure=True)"
    assert repr(NoiseSource(insecure_noise_seed=123456)) == "NoiseSource(secure=False)"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_duplicated(duplicate: Callable[[NoiseSource], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied"):
        duplicate(NoiseSource())


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**40 * 1.0001, "3", None, True, 1j])
def test_bad_sigma_is_refused(sigma: object) -> None:
    with pytest.raises(InputError, match=r"sigma .* \(0, 2\^40\]"):
        NoiseSource().discrete_gaussian(sigma, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, True])
def test_bad_count_is_refused(count: object) -> None:
    with pytest.raises(InputError, match="count must be a non-negative integer"):
        NoiseSource().discrete_gaussian(1.0, count)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="count must be a non-negative integer"):
        NoiseSource().uniform(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "3", True])
def test_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(InputError, match="insecure_noise_seed"):
        NoiseSource(insecure_noise_seed=seed)  # type: ignore[arg-type]


def in_forked_child(draw: Callable[[], bytes]) -> bytes:
    """What ``draw`` returns in the child of a real fork; a deadlocked child is killed by its own alarm."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os.write(write_end, draw())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        received = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return received


@pytest.mark.parametrize("seed", [None, 5])
def test_parent_and_children_draw_different_noise(seed: int | None) -> None:
    source = NoiseSource(insecure_noise_seed=seed)

    def draw() -> bytes:
        return source.uniform(4).tobytes() + source.discrete_gaussian(1e6, 8).tobytes()

    outcomes = [in_forked_child(draw), in_forked_child(draw), draw()]
    words = {outcome[i : i + 8] for outcome in outcomes for i in range(0, 32, 8)}
    assert len(words) == 12
    assert len({outcome[32:] for outcome in outcomes}) == 3
    assert all(len(outcome) == 96 for outcome in outcomes)


def test_branches_made_after_a_fork_differ() -> None:
    """Even with a seed, two processes must not mask with the same words."""
    source = NoiseSource(insecure_noise_seed=3, purpose="site-a")

    def draw() -> bytes:
        return source.branch("masks").uniform(4).tobytes()

    outcomes = [in_forked_child(draw), in_forked_child(draw), draw()]
    assert len(set(outcomes)) == 3


def test_fork_while_another_thread_is_drawing() -> None:
    """The child inherits a lock that nobody will ever release, and must not wait for it."""
    source = NoiseSource()
    drawing, stop = threading.Event(), threading.Event()

    def keep_drawing() -> None:
        while not stop.is_set():
            with source._lock:
                drawing.set()
                stop.wait()

    thread = threading.Thread(target=keep_drawing)
    thread.start()
    drawing.wait()
    try:
        outcome = in_forked_child(lambda: source.discrete_gaussian(1e6, 4).tobytes())
    finally:
        stop.set()
        thread.join()
    assert len(outcome) == 32


def test_fork_from_a_thread() -> None:
    source = NoiseSource()
    outcomes: list[bytes] = []

    def fork_and_draw() -> None:
        outcomes.append(in_forked_child(lambda: source.uniform(4).tobytes()))

    thread = threading.Thread(target=fork_and_draw)
    thread.start()
    thread.join()
    assert len(outcomes[0]) == 32
    assert outcomes[0] != source.uniform(4).tobytes()


def test_threads_share_a_source_without_sharing_words() -> None:
    source = NoiseSource()
    drawn: list[np.ndarray] = []

    def draw() -> None:
        drawn.extend(source.uniform(1000) for _ in range(20))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.unique(np.concatenate(drawn)).size == 4 * 20 * 1000


def test_works_without_a_writable_cache() -> None:
    environment = {
        **os.environ,
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator",
        "XDG_CACHE_HOME": "/dev/null/nowhere",
    }
    program = (
        "from capedjica.securesum.noise import NoiseSource as N; print(N().discrete_gaussian(5.0, 3).size)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_every_call_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the bound of a call follows from its count, however much the source was used before."""
    keys: list[bytes] = []

    class Recorded(Keystream):
        __slots__ = ()

        def __init__(self, key: bytes) -> None:
            keys.append(key)
            super().__init__(key)

    monkeypatch.setattr(noise, "Keystream", Recorded)
    source = NoiseSource()
    for _ in range(3):
        source.uniform(4)
        source.discrete_gaussian(9.0, 4)
    assert len(set(keys)) == len(keys) == 6


@pytest.mark.parametrize("count", [1, 2, 7, 1 << 24])
def test_words_alone_are_bounded_by_their_blocks(count: int) -> None:
    blocks = math.ceil(count / 2)
    assert noise.word_variation_bound(count) == pytest.approx(blocks * (blocks - 1) / 2**129, rel=1e-12)
    assert noise.word_variation_bound(count) <= total_variation_bound(count)
