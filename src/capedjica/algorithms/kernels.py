r"""Fused kernels: one pass over a site's subjects gives one row of statistics per subject.

Data are float32. Matrix products are left to BLAS, limited to one thread per range of subjects so that they
do not depend on the number of threads; every other loop runs along contiguous memory. `infomax_statistics`
stores tiles of up to 256 time points transposed (components, time); `skew_statistics` treats a whole scan
(time, components) as a flat array. Sums within a tile are float32; sums over tiles and all later results are
float64.

**Total functions.** A statistic is defined for any input: a subject with a NaN, an infinity, no time point,
or values whose arithmetic overflows float32 (the Infomax norms do from about 1e19) yields zeros. No product
is skipped where a bound would show that it has no effect, so the work of a pass on finite numbers depends
only on the shapes. The time that a site takes still depends on its data: a subject that yields zeros finishes
earlier and a long scan later, by milliseconds to tens of milliseconds (docs/concepts/threat-model.md, section
10).

**Notation.** R components, T time points of one subject, W the (R, R) unmixing matrix, b the bias,
:math:`z_n = W x_n + b` the source estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capedjica.algorithms.parallel import InParallel, compiled, one_thread, over_subjects
from capedjica.algorithms.reserved import IN_MEMORY, Reserved
from capedjica.errors import InputError
from capedjica.privacy import validate

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
FloatArray = Float32Array | Float64Array

_Subject = TypeVar("_Subject")

TANH_ERROR: Final = 1e-6
"""Maximum error of the kernels' tanh, absolute and relative (`_tanh`)."""

HALF_WINDOW: Final = 7
VARIANCE_FLOOR: Final = 0.3
"""Local variance in `skew_statistics`: a window of 15 time points, and at least 0.3 of the mean."""

_TILE: Final = 256
_SINGLE_EXPONENT: Final = 64  # numbers near 2^64 and 2^-64 are far from the limits of float32
_VECTORS: Final = 32  # floats in four AVX registers, one step of an unrolled loop: tiles end on a multiple
_ROWS: Final = (
    2  # matrices are padded with zeros to a multiple of this, so loops over pairs have no remainder
)


@dataclass(frozen=True, eq=False)
class PackedSubjects:
    """The subjects of one site, concatenated in a single array; scan lengths may differ.

    Attributes
    ----------
    samples : ndarray of float32, shape (total_time, R)
        All time points, C-contiguous.
    offsets : ndarray of int64, shape (n_subjects + 1,)
        Subject m is ``samples[offsets[m]:offsets[m + 1]]``.
    longest : int
        Maximum number of time points of a subject; kernels always allocate memory for this maximum.
    room : Reserved, optional
        Where the samples are, if they may be on disk.
    """

    samples: Float32Array
    offsets: NDArray[np.int64]
    longest: int
    room: Reserved | None = None

    def __post_init__(self) -> None:
        samples, offsets = self.samples, self.offsets
        if samples.dtype != np.float32 or samples.ndim != 2 or not samples.flags.c_contiguous:
            raise InputError("samples must be a C-contiguous float32 array (total_time, features)")
        # The kernels do not check indices, so no offset may point outside the samples.
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 2:
            raise InputError("offsets must be an int64 vector with one more element than there are subjects")
        if offsets[0] != 0 or offsets[-1] != len(samples) or (np.diff(offsets) < 0).any():
            raise InputError(f"offsets must increase from 0 to {len(samples)}, the number of time points")
        if np.diff(offsets).max() > self.longest:
            raise InputError(f"a subject may have at most longest = {self.longest} time points")

    @classmethod
    def from_list(cls, subjects: Sequence[ArrayLike]) -> PackedSubjects:
        """Pack a list of (time, R) arrays; NaN, infinity and empty (0, R) subjects are kept."""
        arrays = [_as_samples(subject, f"subject {m}") for m, subject in enumerate(subjects)]
        if not arrays:
            raise InputError("subjects must contain at least one subject, got none")
        width = arrays[0].shape[1]
        for m, array in enumerate(arrays):
            if array.shape[1] != width:
                raise InputError(
                    f"subject {m} must have {width} features like subject 0, got {array.shape[1]}"
                )
        lengths = [len(array) for array in arrays]
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        return cls(np.ascontiguousarray(np.concatenate(arrays)), offsets, max(lengths))

    @classmethod
    def computed(
        cls,
        function: Callable[[_Subject], ArrayLike],
        subjects: Sequence[_Subject],
        room: Reserved,
        longest: int,
        width: int,
    ) -> PackedSubjects:
        """Pack ``function(subject)`` of every subject; one that cannot be computed has no time points.

        A subject that fails therefore affects only its own contribution, which is then zero. The room, for
        (n_subjects * longest, R) samples, was allocated before
        (:func:`capedjica.algorithms.ica.scan_length.reserve`), so that a long subject does not reduce the
        room available to others.
        """
        memory = room.array((len(subjects) * longest, width), np.float32)
        nothing = memory[:0]

        def compute(number: int) -> Float32Array:
            # A failure on one subject's data must not be visible, nor affect the contribution of another.
            try:
                samples = _as_samples(function(subjects[number]), "subject")
            except MemoryError:
                raise
            except Exception:
                return nothing
            return samples[:longest] if samples.shape[1] == width else nothing

        offsets = np.zeros(len(subjects) + 1, dtype=np.int64)
        computed = InParallel(compute, range(len(subjects)))
        for number in range(len(subjects)):
            try:
                samples = next(computed)
            except MemoryError:
                samples = nothing
            first, last = offsets[number], offsets[number] + len(samples)
            room.touch(samples.nbytes)
            memory[first:last], offsets[number + 1] = samples, last
        return cls(memory[: offsets[-1]], offsets, longest, room)

    def subject(self, number: int) -> Float32Array:
        """Return the (time, R) samples of one subject."""
        return self._samples(number, number + 1)

    def parts(self) -> Iterator[PackedSubjects]:
        """Return the subjects in consecutive parts, each small enough to be in memory; one if all are."""
        size = max(1, IN_MEMORY // (4 * self.longest * self.n_features))
        # Unlike a generator, a map continues after a part that fails.
        return map(partial(self._part, size), range(0, self.n_subjects, size))

    def _part(self, size: int, first: int) -> PackedSubjects:
        offsets = self.offsets[first : first + size + 1]
        return PackedSubjects(
            self._samples(first, first + len(offsets) - 1), offsets - offsets[0], self.longest, self.room
        )

    def _samples(self, first: int, last: int) -> Float32Array:
        samples = self.samples[self.offsets[first] : self.offsets[last]]
        if self.room is not None:
            self.room.touch(samples.nbytes)
        return samples

    @property
    def n_subjects(self) -> int:
        """Number of subjects, including unusable ones."""
        return len(self.offsets) - 1

    @property
    def n_features(self) -> int:
        """Number of features R of a time point."""
        return int(self.samples.shape[1])

    def __repr__(self) -> str:
        return f"PackedSubjects(n_subjects={self.n_subjects}, n_features={self.n_features})"


def _as_samples(subject: ArrayLike, name: str) -> Float32Array:
    """Return one subject as a float32 (time, features) array; values that overflow become infinite."""
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(subject, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers (time, features)") from None
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(f"{name} must be an array (time, features), got shape {array.shape}")
    return array


@compiled
def _tanh(x: np.float32) -> np.float32:
    r"""Rational approximation of tanh, :math:`x P(x^2) / Q(x^2)` for \|x\| <= 7.5 and constant beyond.

    NaN stays NaN. Minimax fit of degrees 3 and 4: relative error 8.4e-8 inside, 1 - tanh(7.5) = 6.2e-7
    beyond, and less than 3e-7 of float32 rounding, in total below `TANH_ERROR`.
    """
    limit = np.float32(7.5)
    x = limit if x > limit else x
    x = -limit if x < -limit else x
    s = x * x
    p = np.float32(1.194996306887495e-05)
    p = np.float32(0.002997918401988882) + s * p
    p = np.float32(0.12968865697362597) + s * p
    p = np.float32(0.9999999169475775) + s * p
    q = np.float32(2.6293859118080206e-07)
    q = np.float32(0.0002453777618239168) + s * q
    q = np.float32(0.024006010381138188) + s * q
    q = np.float32(0.4630212885367674) + s * q
    return x * p / (np.float32(1) + s * q)


@compiled
def _width(length: int) -> int:
    """Return the width of a tile of so many time points."""
    return (length + _VECTORS - 1) // _VECTORS * _VECTORS


@compiled
def _load(samples: Float32Array, first: int, last: int, tile: Float32Array) -> None:
    """Transpose time points first..last into the tile, padded with zeros on both axes."""
    tile[:] = 0
    for t in range(last - first):
        for r in range(samples.shape[1]):
            tile[r, t] = samples[first + t, r]


@compiled
def _add_bias(z: Float32Array, bias: Float32Array) -> None:
    for i in range(len(z)):
        for t in range(z.shape[1]):
            z[i, t] += bias[i]


@compiled
def _clip_factors(
    z: Float32Array, v: Float32Array, y: Float32Array, c: Float32Array, d: Float32Array, scales: Float32Array
) -> np.float32:
    """Fill y, c, d of `infomax_statistics` from z and v = WW'z; return the sum of equation (2)."""
    norm_w, clip_g, clip_h = scales[0], scales[1], scales[2]
    zv = np.zeros_like(c)
    c[:] = norm_w
    d[:] = 0
    for i in range(0, z.shape[0], 2):
        for t in range(len(c)):
            y0, y1 = -_tanh(np.float32(0.5) * z[i, t]), -_tanh(np.float32(0.5) * z[i + 1, t])
            y[i, t], y[i + 1, t] = y0, y1
            c[t] += np.float32(2) * (y0 * v[i, t] + y1 * v[i + 1, t])
            zv[t] += z[i, t] * v[i, t] + z[i + 1, t] * v[i + 1, t]
            d[t] += y0 * y0 + y1 * y1
    check = np.float32(0)
    for t in range(len(c)):
        squared = c[t] + d[t] * zv[t]
        check += squared
        c[t] = clip_g / np.sqrt(squared if squared > clip_g * clip_g else clip_g * clip_g)
        d[t] = clip_h / np.sqrt(d[t] if d[t] > clip_h * clip_h else clip_h * clip_h)
    return check


@compiled
def _add_clipped(
    y: Float32Array,
    z: Float32Array,
    c: Float32Array,
    d: Float32Array,
    product: Float32Array,
    moments: Float64Array,
    bias_gradient: Float64Array,
) -> None:
    """Add sum c_n (I + y_n z_n') to ``moments`` and sum d_n y_n to ``bias_gradient``; scales y by c."""
    total = np.float32(0)
    for t in range(len(c)):
        total += c[t]
    for i in range(len(bias_gradient)):
        gradient = np.float32(0)
        for t in range(len(c)):
            gradient += d[t] * y[i, t]
            y[i, t] *= c[t]
        bias_gradient[i] += gradient
        moments[i, i] += total
    np.dot(y, z.T, product)
    moments += product


@compiled
def _clip(row: Float64Array, bound: float) -> None:
    """Scale the row to a norm of at most ``bound``."""
    norm = np.sqrt(np.sum(row * row))
    if norm > bound:
        row *= bound / norm


@compiled
def _infomax_range(
    first: int,
    last: int,
    samples: Float32Array,
    offsets: NDArray[np.int64],
    matrices: Float32Array,
    bias: Float32Array,
    scales: Float32Array,
    unmixing: Float64Array,
    bounds: Float64Array,
    out: Float64Array,
) -> None:
    """Fill the rows of subjects first..last of `infomax_statistics`; ``matrices`` are W and WW', padded."""
    size, padded = samples.shape[1], len(bias)
    # Separate arrays: the compiler must know that they do not overlap.
    memory = np.zeros(padded * _TILE, np.float32)
    memory_z, memory_v, memory_y = np.zeros_like(memory), np.zeros_like(memory), np.zeros_like(memory)
    factors, product = np.zeros((2, _TILE), np.float32), np.zeros((padded, padded), np.float32)
    moments, gradient, bias_gradient = np.zeros_like(unmixing), np.zeros_like(unmixing), np.zeros(padded)
    for m in range(first, last):
        moments[:] = 0
        bias_gradient[:] = 0
        check = 0.0
        for start in range(offsets[m], offsets[m + 1], _TILE):
            stop = min(start + _TILE, offsets[m + 1])
            width = _width(stop - start)
            tile = padded, width
            x, z = memory[: padded * width].reshape(tile), memory_z[: padded * width].reshape(tile)
            v, y = memory_v[: padded * width].reshape(tile), memory_y[: padded * width].reshape(tile)
            _load(samples, start, stop, x)
            np.dot(matrices[0], x, z)
            _add_bias(z, bias)
            np.dot(matrices[1], z, v)
            c, d = factors[0, :width], factors[1, :width]
            check += float(_clip_factors(z, v, y, c, d, scales))
            c[stop - start :] = 0
            d[stop - start :] = 0
            _add_clipped(y, z, c, d, product, moments, bias_gradient)
        out[m] = 0
        length = offsets[m + 1] - offsets[m]
        if length > 0 and np.isfinite(check):
            np.dot(moments, unmixing, gradient)
            for i in range(size):
                for j in range(size):
                    out[m, i * size + j] = gradient[i, j] / length
                out[m, size * size + i] = bias_gradient[i] / length
            _clip(out[m, : size * size], bounds[0])
            _clip(out[m, size * size :], bounds[1])


@compiled
def _set_weights(length: int, floor: np.float32, weights: Float32Array) -> None:
    """Set the weight of a sum over every window: (1 - f) over the number of its time points in the scan."""
    for t in range(length):
        count = min(t + HALF_WINDOW, length - 1) - max(t - HALF_WINDOW, 0) + 1
        weights[t] = (1 - floor) / np.float32(count)


@compiled
def _local_variance_score(
    size: int,
    floor: np.float32,
    weights: Float32Array,
    z: Float32Array,
    threes: Float32Array,
    psi: Float32Array,
) -> None:
    """Fill psi of `skew_statistics` from z, both flat; z begins and ends with `HALF_WINDOW` rows of zeros.

    A window is five runs of three time points. A shift by one time point is a shift of the flat array by
    ``size``, so every loop runs along contiguous memory whatever the number of components. Only squares are
    added, so a spike has no influence outside its window, unlike in the difference of two running sums.
    """
    z1, z2, centre = z[size:], z[2 * size :], z[HALF_WINDOW * size :]
    for k in range(len(psi) + 12 * size):
        threes[k] = z[k] * z[k] + z1[k] * z1[k] + z2[k] * z2[k]
    t1, t2, t3, t4 = threes[3 * size :], threes[6 * size :], threes[9 * size :], threes[12 * size :]
    for k in range(len(psi)):
        variance = weights[k] * ((threes[k] + t1[k]) + (t2[k] + t3[k]) + t4[k])
        psi[k] = centre[k] / (floor + variance)


@compiled
def _add_skew_part(product: Float32Array, out: Float64Array) -> None:
    """Add the entries above the diagonal of the product minus its transpose."""
    entry = 0
    for i in range(len(product)):
        for j in range(i + 1, len(product)):
            out[entry] += np.float64(product[i, j]) - np.float64(product[j, i])
            entry += 1


@compiled
def _skew_range(
    first: int,
    last: int,
    samples: Float32Array,
    offsets: NDArray[np.int64],
    longest: int,
    transposed: Float32Array,
    floor: np.float32,
    out: Float64Array,
) -> None:
    """Fill the rows of subjects first..last of `skew_statistics`; ``transposed`` is W'."""
    size, window = samples.shape[1], 2 * HALF_WINDOW
    padded = np.zeros((longest + window, size), np.float32)
    threes, product = np.empty(padded.size, np.float32), np.empty((size, size), np.float32)
    psi, weights, weighted = np.empty((longest, size), np.float32), np.empty((longest, size), np.float32), 0
    for m in range(first, last):
        out[m] = 0
        length = offsets[m + 1] - offsets[m]
        if length == 0:
            continue
        z = padded[HALF_WINDOW : HALF_WINDOW + length]
        np.dot(samples[offsets[m] : offsets[m + 1]], transposed, z)
        padded[HALF_WINDOW + length : length + window] = 0
        if length != weighted:
            _set_weights(length, floor, weights)
            weighted = length
        score = psi[:length].ravel()
        _local_variance_score(size, floor, weights.ravel(), padded.ravel(), threes, score)
        for start in range(0, length, _TILE):
            stop = min(start + _TILE, length)
            np.dot(psi[start:stop].T, z[start:stop], product)
            _add_skew_part(product, out[m])
        out[m] /= length
        if not np.isfinite(np.sum(out[m])):
            out[m] = 0


def _square(name: str, matrix: ArrayLike, size: int) -> Float64Array:
    """Return a (size, size) matrix of float64."""
    array = np.asarray(matrix, dtype=np.float64)
    if array.shape != (size, size):
        raise InputError(f"{name} must be a ({size}, {size}) matrix to match the data, got {array.shape}")
    return array


def _pad(array: Float64Array) -> Float64Array:
    """Return a C-contiguous copy, zero-padded to a multiple of `_ROWS` along every axis."""
    return np.pad(array, [(0, -n % _ROWS) for n in array.shape])


def _single(array: ArrayLike) -> Float32Array:
    """Return the array as float32; values that overflow become infinite, and then every row is zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(np.float32)


def infomax_statistics(
    packed: PackedSubjects, W: ArrayLike, b: ArrayLike, clip_g: float, clip_h: float
) -> Float64Array:
    r"""Compute the mean clipped Infomax gradient of every subject (lines 6 to 9 of the paper's Algorithm 4).

    With :math:`y_n = 1 - 2 \sigma(z_n) = -\tanh(z_n / 2)`, time point n contributes

    .. math:: G_n = c_n (I + y_n z_n') W, \qquad h_n = d_n y_n,                             (1)

    where :math:`c_n = \min(1, B_G / \|(I + y_n z_n') W\|_F)` and :math:`d_n = \min(1, B_h / \|y_n\|)`, so
    :math:`\|G_n\| \le B_G` and :math:`\|h_n\| \le B_h`. No R x R matrix is built per time point, since

    .. math:: \|(I + y z') W\|_F^2 = \|W\|_F^2 + 2 y' W W' z + \|y\|^2 \, z' W W' z,        (2)

    and the mean over the subject's **own** T points, which is bounded for any T, is

    .. math:: \bar G = \frac1T \Bigl(\sum_n c_n I + \sum_n c_n y_n z_n'\Bigr) W, \qquad
              \bar h = \frac1T \sum_n d_n y_n.                                            (3)

    Both parts are clipped again in float64, so that rounding cannot raise them above their bounds.

    Parameters
    ----------
    packed : PackedSubjects
        Projected data with R features.
    W : array_like of shape (R, R)
        Unmixing matrix.
    b : array_like of shape (R,)
        Bias.
    clip_g, clip_h : float
        The bounds B_G and B_h.

    Returns
    -------
    ndarray of float64, shape (n_subjects, R * R + R)
        Row m contains the mean gradient of W (row by row), then that of b. Tests confirm agreement with
        float64 within 1e-5, relative to the norm of the row, for R >= 2 and random W of norm 0.1 to 1000
        times sqrt(R); for R = 1 the norm (2) can cancel, and the error is within 1e-3.
    """
    size = packed.n_features
    unmixing = _square("W", W, size)
    bias = np.asarray(b, dtype=np.float64)
    if bias.shape != (size,):
        raise InputError(f"b must contain {size} numbers to match the data, got shape {bias.shape}")
    bounds = np.array([validate.positive("clip_g", clip_g), validate.positive("clip_h", clip_h)])
    with np.errstate(over="ignore", invalid="ignore"):
        gram, norm_w = unmixing @ unmixing.T, np.sum(unmixing**2)
    matrices = _single([_pad(unmixing), _pad(gram)])
    scales = _single([norm_w, *bounds])
    out = np.empty((packed.n_subjects, size * size + size))

    def fill(first: int, last: int) -> None:
        _infomax_range(
            first,
            last,
            packed.samples,
            packed.offsets,
            matrices,
            _single(_pad(bias)),
            scales,
            _pad(unmixing),
            bounds,
            out,
        )

    with one_thread():
        over_subjects(fill, packed.n_subjects)
    return out


def skew_statistics(packed: PackedSubjects, W: ArrayLike, floor: float = VARIANCE_FLOOR) -> Float64Array:
    r"""Compute the skew-symmetric part of :math:`E = \frac1T \sum_n \psi_n z_n'`, z = W x, per subject.

    The score is

    .. math:: \psi_{in} = \frac{z_{in}}{f + (1 - f) v_{in}}, \qquad
              v_{in} = \text{mean of } z_{ik}^2 \text{ over } |k - n| \le h ,

    with h = `HALF_WINDOW`; the window is truncated at the ends of the scan.
    :math:`\psi` is the score of a source whose variance changes slowly with time, estimated from the
    subject's own scan. It depends on one source alone, so :math:`E` is diagonal on average if the sources are
    independent, and its skew part vanishes at the solution.

    Parameters
    ----------
    packed : PackedSubjects
        Whitened data with R features.
    W : array_like of shape (R, R)
        Unmixing matrix, usually orthogonal.
    floor : float
        f, between 0 and 1.

    Returns
    -------
    ndarray of float64, shape (n_subjects, R * (R - 1) / 2)
        Row m contains :math:`E_{ij} - E_{ji}` for i < j, in the order of ``numpy.triu_indices(R, 1)``, not
        clipped. Within 1e-5 of exact arithmetic, relative to the norm of :math:`E`.
    """
    size = packed.n_features
    transposed = np.ascontiguousarray(_single(_square("W", W, size)).T)
    share = np.float32(validate.probability("floor", floor))
    out = np.empty((packed.n_subjects, size * (size - 1) // 2))

    def fill(first: int, last: int) -> None:
        _skew_range(first, last, packed.samples, packed.offsets, packed.longest, transposed, share, out)

    with one_thread():
        over_subjects(fill, packed.n_subjects)
    return out


def second_moments(subject: ArrayLike, clip: float) -> Float64Array:
    r"""Compute the mean of the clipped outer products, :math:`\frac1T \sum_n \tilde x_n \tilde x_n'`.

    :math:`\tilde x_n = x_n \min(1, B / \|x_n\|)` with B = ``clip``, so the Frobenius norm is at most
    :math:`B^2` (float32 rounding may add a relative T / 2^24, which quantisation clips away). Products are
    computed in units of the clip: in those of the data they could be denormal, and then neither positive
    semidefinite nor reliably bounded.

    Parameters
    ----------
    subject : array_like of shape (time, D)
        One subject; with a NaN, an infinity or no time point the result is zero.
    clip : float
        Largest norm of one time point.

    Returns
    -------
    ndarray of float64, shape (D, D)
        Exactly symmetric.
    """
    bound = validate.positive("clip", clip)
    unit = _single_unit(bound)
    with np.errstate(over="ignore", under="ignore"):
        samples = _as_samples(subject if unit == 1 else np.asarray(subject, np.float64) / unit, "subject")
    norms = np.sqrt(np.einsum("td,td->t", samples, samples, dtype=np.float64))
    if len(norms) == 0 or not np.isfinite(norms).all():
        return np.zeros((samples.shape[1],) * 2)
    factors = 1 / np.maximum(norms, bound / unit) / np.sqrt(len(norms))
    clipped = samples * factors.astype(np.float32)[:, np.newaxis]
    moments: Float64Array = bound * bound * (clipped.T @ clipped).astype(np.float64)
    return moments


def _single_unit(bound: float) -> float:
    """Return the power of two by which to divide so that numbers near ``bound`` fit float32; usually 1."""
    exponent = math.frexp(bound)[1]
    return 1.0 if abs(exponent) <= _SINGLE_EXPONENT else math.ldexp(1.0, exponent)
