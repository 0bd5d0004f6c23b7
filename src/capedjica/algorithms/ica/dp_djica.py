r"""dp-djICA, the algorithm of Imtiaz et al. 2016: Laplace noise on the source estimates, pure epsilon.

This is a baseline for the paper's figures; nothing else in the package relies on it. Samples have dimension
R = D (they have been reduced) and are bounded by

.. math:: \|x_n\|_2 \le \frac{1}{2 \sqrt D}.                                                       (1)

In each of J iterations every site adds Laplace noise to its source estimates
:math:`Z_s = W X_s + b 1'`. The gradients of W and b over all points are computed from the noisy Z alone, so
they are post-processing:

.. math:: G = \frac1N \sum_n (I + \hat y_n z_n') W, \qquad h = \frac1N \sum_n \hat y_n, \qquad
          \hat y = -\tanh(z / 2).                                                                (2)

**Replacing one sample** changes one column of Z by :math:`W \Delta x` with :math:`\|\Delta x\|_2 \le 1 /
\sqrt D` by (1), and does not change b. As :math:`\|v\|_1 \le \sqrt R \|v\|_2` in R dimensions, the L1
sensitivity is

.. math:: \Delta = \max \|W \Delta x\|_1 \le \sqrt R \, \|W\|_2 / \sqrt D,                         (3)

attained when W has a top left singular vector with entries of equal size. Noise of scale
:math:`\Delta / \varepsilon` makes an iteration epsilon-differentially private for one sample.

**Replacing one subject** by another of any length changes T columns, each by as much, where T is a public
length to which every subject is truncated or extended with zero samples. The sensitivity is
:math:`T \Delta`, and so the noise is T times as wide. The noise for samples would give a subject
:math:`T \varepsilon`. With samples as neighbours, lengths are unchanged and public.

Sites have different subjects and independent noise, so the privacy loss of a subject is that of one site. J
iterations cost :math:`J \varepsilon`, fixed before the run: stopping early depends on the data and saves
nothing.

**Enforcing (1).** By default each subject is divided by the norm of its own largest sample, which uses one
subject and has no privacy cost. One *sample* would change that norm for all other samples of the subject:
with samples as neighbours a public ``clip`` must be given instead, to which larger samples are clipped.

**Limitations.** The noise is drawn by inversion in floating point, and neither its grid and finite range (54
ln 2 scales) nor the rounding of Z + noise is accounted for (Mironov 2012). It comes from a cryptographic
source, but it is the noise of a baseline and not hardened like that of :mod:`capedjica.securesum`. The
epsilon does not cover any reduction or whitening of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from capedjica.algorithms.ica.infomax import Infomax, default_learning_rate, descend
from capedjica.algorithms.ica.scan_length import check_scan_length
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.privacy.neighbour import Neighbour, ProtectedUnit
from capedjica.securesum.noise import NoiseSource
from capedjica.tools.arrays import FloatArray

_CHUNK: Final = 512  # samples at a time, so that intermediate results stay in the cache
_SMALLEST: Final = 1e-150  # the squares of smaller numbers lose digits, and norms could be too small


@dataclass(frozen=True, eq=False)
class DpDjicaResult:
    """Result of dp-djICA, and its privacy cost.

    Attributes
    ----------
    unmixing : ndarray of shape (R, R)
        Unmixing matrix of the samples as given, up to one factor.
    n_iter : int
        Number of iterations run.
    epsilon : float
        Epsilon of one iteration.
    epsilon_total : float
        J epsilon, the guarantee for all permitted iterations, whether run or not. Infinite if the noise came
        from a seed.
    neighbour : {"sample", "subject"}
        Unit of privacy.
    secure : bool
        False if the noise came from a seed, which gives no protection.
    """

    unmixing: FloatArray
    n_iter: int
    epsilon: float
    epsilon_total: float
    neighbour: Neighbour
    secure: bool


def sample_sensitivity(W: FloatArray) -> float:
    """Return the bound of equation (3), sqrt(R) ||W||_2 / sqrt(D), for an (R, D) matrix W."""
    rank, dimension = W.shape
    return math.sqrt(rank / dimension) * float(np.linalg.norm(W, 2))


def laplace(noise: NoiseSource, shape: tuple[int, int]) -> FloatArray:
    """Return Laplace noise of scale 1: a random sign times -ln u, with u from 53 bits of each word."""
    words = noise.uniform(math.prod(shape)).reshape(shape)
    magnitudes: FloatArray = -np.log(((words >> np.uint64(11)) + 0.5) * 2.0**-53)
    return np.where(words & np.uint64(1), magnitudes, -magnitudes)


def dp_djica(
    sites: Sequence[Sequence[ArrayLike]],
    epsilon: float,
    n_iterations: int,
    learning_rate: float | None = None,
    neighbour: Neighbour = "subject",
    noise: NoiseSource | None = None,
    *,
    clip: float | None = None,
    scan_length: int | None = None,
    progress: Callable[[Infomax, int, float], None] | None = None,
) -> DpDjicaResult:
    r"""Estimate one unmixing matrix for all sites with Laplace noise on every source estimate.

    A subject with NaN or infinity is included with zero samples (with ``clip``, only that sample is zero).

    Parameters
    ----------
    sites : sequence of sequences of array_like of shape (T, R)
        The subjects of every site, reduced to R dimensions; lengths may differ.
    epsilon : float
        Epsilon of one iteration.
    n_iterations : int
        Maximum number of iterations J.
    learning_rate : float, optional
        Learning rate; by default 0.015 / ln R.
    neighbour : {"sample", "subject"}
        Unit of privacy: one time point or one subject.
    noise : NoiseSource, optional
        Source of the noise; by default a fresh one, keyed by the operating system.
    clip : float, optional
        Public bound on \|x\|, which is scaled to the bound (1); required for ``neighbour="sample"``. By
        default the largest sample of each subject is used.
    scan_length : int, optional
        T, the public length to which every subject is truncated or extended; required for
        ``neighbour="subject"``.
    progress : callable, optional
        Called as ``progress(infomax, iteration, noise)`` after every iteration, with the largest standard
        deviation of the noise on a source estimate.

    Returns
    -------
    DpDjicaResult
    """
    epsilon = validate.positive("epsilon", epsilon)
    n_iterations = validate.count("n_iterations", n_iterations)
    _check_neighbour(neighbour, clip, scan_length)
    source = NoiseSource() if noise is None else noise
    data = [NoisySite(site, f"site {s}", neighbour, clip, scan_length) for s, site in enumerate(sites)]
    widths = [int(site.samples.shape[1]) for site in data]
    if len(set(widths)) != 1 or sum(len(site.samples) for site in data) == 0:
        raise InputError(f"sites must contain samples of one dimension R, got {widths}")
    size = widths[0]
    rate = default_learning_rate(size) if learning_rate is None else learning_rate
    infomax = Infomax(size, validate.positive("learning_rate", rate), clip_g=1.0, clip_h=1.0)

    spread = 0.0

    def mean(_: bytes) -> FloatArray:
        nonlocal spread
        spread = math.sqrt(2) * max(float(site.noise_scale(infomax.W, epsilon).max()) for site in data)
        sums = [site.gradients(infomax.W, infomax.b, epsilon, source) for site in data]
        average: FloatArray = np.sum(sums, axis=0) / sum(len(site.samples) for site in data)
        return average

    def look(infomax: Infomax, iteration: int) -> None:
        if progress is not None:
            progress(infomax, iteration, spread)

    n_iter = descend(infomax, mean, n_iterations, look)
    total = epsilon * n_iterations if source.secure else math.inf
    return DpDjicaResult(infomax.W, n_iter, epsilon, total, neighbour, secure=source.secure)


def _check_neighbour(neighbour: Neighbour, clip: float | None, scan_length: int | None) -> None:
    ProtectedUnit(neighbour)
    if clip is not None:
        validate.positive("clip", clip)
    elif neighbour == "sample":
        raise InputError(
            "neighbour 'sample' requires a public clip: a subject's largest sample depends on the others"
        )
    if scan_length is not None:
        check_scan_length(scan_length)
    elif neighbour == "subject":
        raise InputError("neighbour 'subject' requires a public scan_length: scan lengths are private")


class NoisySite:
    """One site: its bounded samples, and for each the number of samples that a neighbour changes.

    Parameters
    ----------
    subjects : sequence of array_like of shape (T, R)
    name : str
        Name of the site, for error messages.
    neighbour, clip, scan_length
        As in :func:`dp_djica`.
    """

    def __init__(
        self,
        subjects: Sequence[ArrayLike],
        name: str,
        neighbour: Neighbour,
        clip: float | None,
        scan_length: int | None,
    ) -> None:
        bounded = [
            _bounded(subject, f"{name}, subject {m}", clip, scan_length) for m, subject in enumerate(subjects)
        ]
        widths = sorted({subject.shape[1] for subject in bounded})
        if len(widths) != 1:
            raise InputError(f"{name} must contain subjects (time, R) with the same R; got R of {widths}")
        self.samples = np.concatenate(bounded)
        lengths = np.array([len(subject) for subject in bounded])
        changed = lengths if neighbour == "subject" else np.ones_like(lengths)
        self._n_changed = np.repeat(changed, lengths)[:, np.newaxis]

    def noise_scale(self, W: FloatArray, epsilon: float) -> FloatArray:
        """Return the scale of the noise on each sample's source estimates, (N_s, 1)."""
        scale: FloatArray = self._n_changed * (sample_sensitivity(W) / epsilon)
        return scale

    def gradients(self, W: FloatArray, b: FloatArray, epsilon: float, noise: NoiseSource) -> FloatArray:
        """Return N_s (G, h) of equation (2), computed from noisy source estimates."""
        scale = self.noise_scale(W, epsilon)
        moments, bias_gradient = len(self.samples) * np.eye(len(W)), np.zeros(len(W))
        for start in range(0, len(self.samples), _CHUNK):
            part = slice(start, start + _CHUNK)
            x = self.samples[part]
            z = x @ W.T + b + scale[part] * laplace(noise, x.shape)
            y = -np.tanh(z / 2)
            moments += y.T @ z
            bias_gradient += y.sum(axis=0)
        return np.concatenate([(moments @ W).ravel(), bias_gradient])


def _bounded(subject: ArrayLike, name: str, clip: float | None, scan_length: int | None) -> FloatArray:
    r"""Return the samples with \|x\| <= 1 / (2 sqrt(D)), truncated or extended to any public length.

    Without a clip, a single non-finite number makes the whole subject zero; with one, only its sample.
    """
    try:
        samples = np.asarray(subject, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers (time, R)") from None
    if samples.ndim != 2 or samples.shape[1] == 0:
        raise InputError(f"{name} must be an array (time, R), got shape {samples.shape}")
    if scan_length is not None:
        samples = np.pad(samples[:scan_length], ((0, max(0, scan_length - len(samples))), (0, 0)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        norms = np.linalg.norm(samples, axis=1, keepdims=True)
        largest = norms.max(initial=0.0) if clip is None else np.maximum(norms, clip)
        scaled = samples / largest / (2 * math.sqrt(samples.shape[1]))
    return np.where((largest > _SMALLEST) & np.isfinite(largest), scaled, 0.0)
