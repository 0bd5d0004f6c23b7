r"""Noise of the private path: ring masks and exact discrete Gaussian samples from a cryptographic stream.

The discrete Gaussian, :math:`P(k) \propto e^{-k^2 / 2 \sigma^2}` on the integers, is sampled by rejection
from a discrete Laplace distribution (Canonne, Kamath and Steinke 2020) whose scale :math:`t` is a power of
two. One *trial* uses three words of the stream:

1. the low bits of the first give :math:`u` uniform on :math:`[0, t)` without a modulo, its top bit the sign;
2. the second, taken as a uniform variate :math:`U`, gives :math:`v = \#\{k \ge 1 : U < e^{-k}\}`, so that
   :math:`P(v \ge k) = e^{-k}`;
3. with :math:`y = u + t v` (and -0 rejected), the third accepts :math:`\pm y` with probability

   .. math:: p = e^{-x}, \quad x = \frac{u}{t} + \frac12 \Bigl(\frac{y}{\sigma} - \frac{\sigma}{t}\Bigr)^2
             = \frac{y^2}{2 \sigma^2} - v + \frac{\sigma^2}{2 t^2} .

The probability that a trial yields :math:`+y` is :math:`\frac{1}{2t} (1 - e^{-1}) e^{-v} p \propto
e^{-y^2 / 2 \sigma^2}`, and the same for :math:`-y`: the distribution is the intended one, for any :math:`t`.

**Exactness.** A double *is* a rational number, so :math:`\sigma` and therefore :math:`x` are exact rationals.
The compiled kernel only decides trials whose outcome is certain. The others, about one in :math:`2^{43}`
trials, are decided in rational arithmetic, which draws further bits of the same uniform variate until the
outcome is certain (`LazyUniform`). Step 2 compares with the integers :math:`\lfloor 2^{64} e^{-k} \rfloor`
and is undecided only on equality. In step 3 the kernel's :math:`\hat p` differs from :math:`p` by less than
`PROBABILITY_ERROR` :math:`= 2^{-46}`, and it decides only when the variate, read to 53 bits, is further than
`GUARD` :math:`= 2^{-44}` from :math:`\hat p`. Given independent uniform words, the samples therefore have
**exactly** the stated distribution: the total-variation error of the arithmetic is zero. The only remaining
error is that of the stream itself, `total_variation_bound`.

**The error bound**, with :math:`\epsilon = 2^{-53}`, assumes only IEEE 754 rounding of + - * / (a
fused multiply-add rounds once instead of twice, which can only reduce the error; no libm function is called):

- :math:`a = y/\sigma` is one rounding of exact operands (:math:`y < 2^{47}`); :math:`b = \sigma/t \le
  \sqrt2` and :math:`u/t` are exact because :math:`t` is a power of two. So the error of :math:`\hat z` is at
  most :math:`(a + |z|) \epsilon \le (2|z| + \sqrt2) \epsilon` to first order.
- The error of :math:`\hat x` is :math:`|z| (2|z| + \sqrt2) \epsilon` from :math:`\hat z`, plus
  :math:`2 x \epsilon` from the square and the sum. Multiplied by :math:`e^{-x} \le e^{-z^2/2}`, using
  :math:`\max z^2 e^{-z^2/2} = 2/e`, :math:`\max z e^{-z^2/2} = e^{-1/2}` and
  :math:`\max x e^{-x} = 1/e`, that is less than :math:`4 \epsilon`.
- :math:`e^{-\hat x}` is a product of two correctly rounded table entries and a Taylor polynomial of degree 6
  in :math:`r \in [0, 2^{-6})`, which is exact as the difference of two close doubles. Tables 2, products 2,
  Horner's last sums less than 2, and truncation :math:`2^{-42}/7! < 0.5 \epsilon`: less than
  :math:`7 \epsilon`.
- First-order terms sum to less than :math:`11 \epsilon`, those of second order to less than
  :math:`\epsilon`, and an underflow adds less than :math:`2^{-1000}`: together below :math:`2^{-49}`. For
  :math:`\hat x \ge 32` the kernel uses :math:`\hat p = 0`, with an error of at most
  :math:`e^{-31.9} < 2^{-46}`.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from capedjica.compiled import compiled
from capedjica.errors import InputError
from capedjica.securesum.lazy_uniform import LazyUniform, exp_minus_bounds
from capedjica.securesum.stream import KEY_BYTES, Keystream

MAX_SIGMA: Final = 2.0**40
PROBABILITY_ERROR: Final = 2.0**-46
GUARD: Final = 4 * PROBABILITY_ERROR

_TRIAL_WORDS: Final = 3
_CHUNK_TRIALS: Final = 1 << 14
_SIGN_SHIFT: Final = np.uint64(63)
_UNIT_SHIFT: Final = np.uint64(11)
_UNIT: Final = 2.0**-53
_CERTAIN_REJECTION: Final = 32
_STEPS: Final = 64  # entries of the table of exp(-j / 64)


def _exp_minus_double(x: Fraction) -> float:
    """Round exp(-x), 0 <= x < 32, to the nearest double, from an enclosure of 160 binary places."""
    lower, upper = exp_minus_bounds(x, 160)
    nearest = float(Fraction(lower, 1 << 160))
    assert nearest == float(Fraction(upper, 1 << 160))
    return nearest


# floor(2^64 exp(-k)) for k = 1 .. 45; the last is 0, so a search through the table always ends.
_DECAY: Final = np.array([exp_minus_bounds(Fraction(k), 64)[0] for k in range(1, 46)], dtype=np.uint64)
_EXP_WHOLE: Final = np.array([_exp_minus_double(Fraction(i)) for i in range(_CERTAIN_REJECTION)])
_EXP_STEP: Final = np.array([_exp_minus_double(Fraction(j, _STEPS)) for j in range(_STEPS)])


def _exp_minus_python(x: float) -> float:
    """Evaluate exp(-x), x >= 0, to a relative error below 7 * 2^-53; 0 from x = 32 on."""
    if not x < _CERTAIN_REJECTION:
        return 0.0
    index = int(x * _STEPS)
    r = x - index / _STEPS
    series = 1.0 - r * (1.0 - r * (1 / 2 - r * (1 / 6 - r * (1 / 24 - r * (1 / 120 - r * (1 / 720))))))
    return float(_EXP_WHOLE[index // _STEPS] * _EXP_STEP[index % _STEPS] * series)


_exp_minus = compiled(_exp_minus_python)


def _acceptance_python(
    rest: int | np.int64, magnitude: int | np.int64, sigma: float, scale: int | np.int64
) -> float:
    """Evaluate p of step 3 for u = ``rest``, y = ``magnitude``, t = ``scale``, to `PROBABILITY_ERROR`."""
    z = magnitude / sigma - sigma / scale
    return _exp_minus(rest / scale + 0.5 * z * z)


_acceptance = compiled(_acceptance_python)


def _run_trials_python(
    words: NDArray[np.uint64],
    trial: int,
    sigma: float,
    scale_bits: int,
    guard: float,
    out: NDArray[np.int64],
    filled: int,
) -> tuple[int, int, bool]:
    """Run trials until the words are used up, ``out`` is full, or a trial is undecided.

    Returns
    -------
    trial, filled : int
        The next trial to run (or the undecided one), and the number of entries of ``out`` filled.
    undecided : bool
        Whether that trial needs exact arithmetic.
    """
    scale = np.int64(1) << scale_bits
    low_bits = np.uint64(scale - 1)
    trials = words.size // _TRIAL_WORDS
    while trial < trials and filled < out.size:
        position = words[_TRIAL_WORDS * trial]
        decay = words[_TRIAL_WORDS * trial + 1]
        coin = words[_TRIAL_WORDS * trial + 2]
        rest = np.int64(position & low_bits)
        negative = position >> _SIGN_SHIFT != 0
        whole = 0
        while decay < _DECAY[whole]:
            whole += 1
        if decay == _DECAY[whole]:
            return trial, filled, True
        magnitude = rest + whole * scale
        if magnitude != 0 or not negative:
            excess = np.int64(coin >> _UNIT_SHIFT) * _UNIT - _acceptance(rest, magnitude, sigma, scale)
            if -guard <= excess <= guard:
                return trial, filled, True
            if excess < 0.0:
                out[filled] = -magnitude if negative else magnitude
                filled += 1
        trial += 1
    return trial, filled, False


_run_trials = compiled(_run_trials_python)


def _decide_exactly(
    words: NDArray[np.uint64], sigma: float, scale_bits: int, next_word: Callable[[], int]
) -> int | None:
    """Decide one trial in rational arithmetic; return the sample, or None if the trial is rejected."""
    position, decay, coin = (int(word) for word in words)
    scale = 1 << scale_bits
    rest, negative = position & scale - 1, position >> 63
    decay_variate = LazyUniform(decay, next_word)
    whole = 0
    while decay_variate.below_exp_minus(Fraction(whole + 1)):
        whole += 1
    magnitude = rest + whole * scale
    if negative and not magnitude:
        return None
    z = magnitude / Fraction(sigma) - Fraction(sigma) / scale
    if not LazyUniform(coin, next_word).below_exp_minus(Fraction(rest, scale) + z * z / 2):
        return None
    return -magnitude if negative else magnitude


def _sample(stream: Keystream, sigma: float, count: int, guard: float = GUARD) -> NDArray[np.int64]:
    """Draw ``count`` samples; a wider guard sends more trials to exact arithmetic, with the same outcome."""
    scale_bits = max(0, round(math.log2(sigma)))
    out = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        # Between 0.29 and 0.48 of the trials succeed.
        trials = min(_CHUNK_TRIALS, 16 + 3 * (count - filled))
        filled = _fill(out, filled, stream, trials, sigma, scale_bits, guard)
    return out


def _fill(
    out: NDArray[np.int64],
    filled: int,
    stream: Keystream,
    trials: int,
    sigma: float,
    scale_bits: int,
    guard: float,
) -> int:
    """Run new trials, using exact arithmetic for undecided ones; return the number of entries filled."""
    words = stream.words(_TRIAL_WORDS * trials)
    trial, filled, undecided = _run_trials(words, 0, sigma, scale_bits, guard, out, filled)
    while undecided:
        own = words[_TRIAL_WORDS * trial : _TRIAL_WORDS * (trial + 1)]
        sample = _decide_exactly(own, sigma, scale_bits, lambda: int(stream.words(1)[0]))
        if sample is not None:
            out[filled] = sample
            filled += 1
        trial, filled, undecided = _run_trials(words, trial + 1, sigma, scale_bits, guard, out, filled)
    return filled


def total_variation_bound(count: int) -> float:
    r"""Bound the distance from ideal noise of all samples under one key, for AES-256 as a random permutation.

    The arithmetic is exact, so the only deviation is that of the stream: the blocks of counter mode never
    repeat, whereas those of a truly random stream may. Up to the first repetition among the blocks *used* the
    two can be coupled, so the distance is at most :math:`E[B (B - 1)] / 2^{129}` for :math:`B` blocks of 128
    bits. A trial uses at most two blocks and succeeds with probability

    .. math:: q = \frac{1 - e^{-1}}{2} \, \frac1t \sum_k e^{-k^2 / 2 \sigma^2} \, e^{-\sigma^2 / 2 t^2}
              \ge 0.29 ,

    since the sum is at least :math:`\max(1, \sqrt{2 \pi} \sigma)` and :math:`\sigma / t` lies in
    :math:`[2^{-1/2}, 2^{1/2}]` or :math:`t = 1`. So :math:`n` samples take a negative binomial number of
    trials, :math:`E[B^2] \le 4 (n^2 + n) / q^2 < 96 n^2`, the rare exact decisions fit in the slack to
    :math:`128 n^2`, and

    .. math:: TV \le n^2 / 2^{122} .

    This also covers a magnitude of more than 63 bits (probability below :math:`e^{-2^{44}}`). It remains an
    assumption that AES-256 under a secret key is indistinguishable from a random permutation, the same
    computational assumption on which masks and keys rely.

    Parameters
    ----------
    count : int
        Number of samples drawn by one call of a source, which uses one key; the bounds of several calls add
        up.

    Returns
    -------
    float
        Upper bound on the total-variation distance. For its effect on delta, see
        :mod:`capedjica.privacy.reserved_delta`.
    """
    return min(1.0, float(_checked_count(count)) ** 2 * 2.0**-122)


def word_variation_bound(count: int) -> float:
    r"""Bound the same distance for uniform words: :math:`B (B - 1) / 2^{129}` with two words per block."""
    blocks = -(-_checked_count(count) // 2)
    return min(1.0, blocks * (blocks - 1) * 2.0**-129)


class NoiseSource:
    """Source of unpredictable noise and masks, from streams keyed by the operating system.

    Every call draws from a stream with its own key, so its distance from ideal noise depends only on its
    ``count`` (`total_variation_bound`) and not on earlier use of the source. With a seed there is one
    stream. The source gets a new key in the child of a fork and cannot be copied or pickled, since two
    streams under one key would mask two messages with the same noise. Threads may share a source.

    Parameters
    ----------
    insecure_noise_seed : int, optional
        Seed for reproducible noise, for experiments only: anyone who guesses the seed can remove the noise.
        In a forked child the source gets a new key and is no longer reproducible.
    purpose : str
        Separates the streams of one seed, for example the name of the site; no effect without a seed.

    Attributes
    ----------
    secure : bool
        False for a seeded source. **Results computed from an insecure source are not private**: a result must
        carry ``secure = all(source.secure for source in its sources)`` and show it next to any guarantee.
    """

    __slots__ = ("__weakref__", "_lock", "_purpose", "_secure", "_seed", "_seeded")

    def __init__(self, *, insecure_noise_seed: int | None = None, purpose: str = "") -> None:
        self._secure = insecure_noise_seed is None
        self._seed, self._purpose = insecure_noise_seed, purpose
        self._lock = threading.Lock()
        self._seeded: Keystream | None = None
        if insecure_noise_seed is not None:
            self._seeded = Keystream(_seeded_key(insecure_noise_seed, purpose))
        _sources.add(self)

    def _stream(self) -> Keystream:
        return self._seeded or Keystream(os.urandom(KEY_BYTES))

    @property
    def secure(self) -> bool:
        """Whether the keys come from the operating system; if False, no result of the source is private."""
        return self._secure

    def branch(self, purpose: str) -> NoiseSource:
        """Return a source with its own stream; with a seed, draws from one do not affect the other.

        Parameters
        ----------
        purpose : str
            Separates the branches of one source; no effect without a seed.
        """
        return NoiseSource(insecure_noise_seed=self._seed, purpose=f"{self._purpose}/{purpose}")

    def uniform(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` independent words, uniform on the ring of integers modulo 2^64."""
        count = _checked_count(count)
        with self._lock:
            return self._stream().words(count)

    def discrete_gaussian(self, sigma: float, count: int) -> NDArray[np.int64]:
        """Return ``count`` independent integers with P(k) exactly proportional to exp(-k^2 / (2 sigma^2)).

        The running time depends on the samples and increases slightly with their magnitudes. It never depends
        on data, but an observer who can time a draw of very few samples to nanoseconds learns something about
        them.

        Parameters
        ----------
        sigma : float
            Scale in grid steps, in (0, 2^40], taken as the exact rational value of the double.
        count : int
            Number of samples.

        Returns
        -------
        ndarray of int64
            The samples.
        """
        sigma, count = _checked_sigma(sigma), _checked_count(count)
        with self._lock:
            return _sample(self._stream(), sigma, count)

    def _rekey_after_fork(self) -> None:
        # A thread of the parent may have held the lock; it does not exist in the child.
        self._lock = threading.Lock()
        self._seeded = None
        # The parent may create branches, too.
        self._purpose = os.urandom(KEY_BYTES).hex()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NoiseSource cannot be copied or pickled: its stream must be used only once")

    def __repr__(self) -> str:
        return f"NoiseSource(secure={self._secure})"


_sources: Final[weakref.WeakSet[NoiseSource]] = weakref.WeakSet()


def _rekey_all() -> None:
    for source in _sources:
        source._rekey_after_fork()


if hasattr(os, "register_at_fork"):  # a system without it has no fork either
    os.register_at_fork(after_in_child=_rekey_all)


def _seeded_key(seed: int, purpose: str) -> bytes:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"insecure_noise_seed must be a non-negative integer, got {seed!r}")
    info = b"capedjica insecure noise\x00" + purpose.encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(str(int(seed)).encode())


def _checked_sigma(sigma: float) -> float:
    if isinstance(sigma, bool) or not isinstance(sigma, int | float | np.floating | np.integer):
        raise InputError(f"sigma must be a number in (0, 2^40] grid steps, got {type(sigma).__name__}")
    if not 0 < sigma <= MAX_SIGMA:
        raise InputError(f"sigma must lie in (0, 2^40] grid steps, got {float(sigma)!r}")
    return float(sigma)


def _checked_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise InputError(f"count must be a non-negative integer, got {count!r}")
    return int(count)
