"""``CapeDJICA``: brain networks by joint ICA of data that stay at their sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.capedjica import PaperSite, estimate, stages
from capedjica.algorithms.infomax import B_G, B_H, TOLERANCE, Infomax, default_learning_rate
from capedjica.engines.embedded import EmbeddedStudy
from capedjica.errors import InputError
from capedjica.estimators.inputs import OnBad, Sites, Subject, read_sites
from capedjica.mechanisms.contract import MaskName, MechanismName
from capedjica.privacy import validate
from capedjica.privacy.statement import PrivacyStatement

FloatArray = NDArray[np.float64]
Method = Literal["paper", "djica", "dp-djica"]
METHODS: tuple[str, ...] = ("paper", "djica", "dp-djica")


class CapeDJICA:
    """Joint ICA across sites, with every release accounted for.

    ``method`` says what is computed, ``mechanism`` how each mean over subjects is made private. All sites run
    in this process and exchange the protocol's real bytes.

    Parameters
    ----------
    n_components : int
        R, the number of networks.
    epsilon : float or dict from site to float, optional
        Total budget for all stages together, PCA included; required unless ``mechanism="none"``.
    delta : float
        Of the total guarantee.
    method : {"paper", "djica", "dp-djica"}
        "paper": capePCA, then Algorithm 4. "djica": the non-private algorithm of Baker et al. 2018.
        "dp-djica": the algorithm of Imtiaz et al. 2016, with Laplace noise and pure epsilon for the descent.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How a mean is made private.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    mask : {"uniform", "paper"}
        Kind of masks.
    max_iter : int
        J, the most iterations of the descent.
    learning_rate : float, optional
        rho; by default the paper's 0.015 / ln R.
    pca_share : float
        Part of the budget (of mu^2) for the PCA.
    clip_g, clip_h : float
        B_G and B_h, bounds of the gradients at one time point.
    tol : float
        Squared change of the unmixing matrix at which to stop.
    random_state : int, optional
        Seeds what is not privacy noise (the order of time points in "djica").
    on_bad : {"raise", "zero"}
        What to do about subjects with NaN, infinity or constant features.
    insecure_noise_seed : int, optional
        Reproducible noise; the result is marked as not private.
    callback : callable, optional
        ``callback(estimator, iteration)`` after each iteration, when ``unmixing_`` is the current estimate.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The maps, each scaled so that its largest absolute value is 1 and positive, in the order of the
        features at which they peak: both stay the same between runs that find the same maps.
    mixing_ : array of shape (n_features, n_components)
        The maps as columns.
    unmixing_ : array of shape (n_components, n_features)
        The pseudo-inverse of ``mixing_``.
    n_iter_ : int
        Iterations made.
    privacy_ : PrivacyStatement
        The guarantee, and what every stage cost.
    """

    def __init__(
        self,
        n_components: int,
        epsilon: float | Mapping[str, float] | None = None,
        delta: float = 1e-5,
        method: Method = "paper",
        mechanism: MechanismName = "cape",
        n_colluding: int | str = "third",
        mask: MaskName = "uniform",
        max_iter: int = 1000,
        learning_rate: float | None = None,
        pca_share: float = 0.3,
        clip_g: float = B_G,
        clip_h: float = B_H,
        tol: float = TOLERANCE,
        random_state: int | None = None,
        on_bad: OnBad = "raise",
        insecure_noise_seed: int | None = None,
        callback: Callable[[CapeDJICA, int], None] | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.method, self.mechanism, self.n_colluding, self.mask = method, mechanism, n_colluding, mask
        self.max_iter, self.learning_rate, self.pca_share = max_iter, learning_rate, pca_share
        self.clip_g, self.clip_h, self.tol = clip_g, clip_h, tol
        self.random_state, self.on_bad = random_state, on_bad
        self.insecure_noise_seed, self.callback = insecure_noise_seed, callback

    components_: FloatArray
    mixing_: FloatArray
    unmixing_: FloatArray
    n_iter_: int
    privacy_: PrivacyStatement

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Estimate the networks.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is a list of subjects, a subject an array (time, features); scans may differ in length.
        y : None
            Ignored.
        """
        self._check_parameters()
        sites = read_sites(X, self.n_components, self.on_bad)
        self._fit_paper(sites)
        return self

    def _check_parameters(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        validate.count("n_components", self.n_components, minimum=2)
        validate.count("max_iter", self.max_iter)
        for name in ("clip_g", "clip_h", "tol"):
            validate.positive(name, getattr(self, name))
        if self.learning_rate is not None:
            validate.positive("learning_rate", self.learning_rate)
        if not 0 < self.pca_share < 1:
            raise InputError(f"pca_share must lie between 0 and 1, got {self.pca_share}")

    def _fit_paper(self, sites: Mapping[str, Sequence[Subject]]) -> None:
        n_features = next(iter(sites.values()))[0].shape[1]
        study = EmbeddedStudy(
            f"{self.method} ICA with {self.n_components} components",
            {name: len(subjects) for name, subjects in sites.items()},
            {name: PaperSite(subjects, self.clip_g, self.clip_h) for name, subjects in sites.items()},
            stages(n_features, self.n_components, self.max_iter, self.pca_share),
            epsilon=self.epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            mask=self.mask,
            n_colluding=self.n_colluding,
            insecure_noise_seed=self.insecure_noise_seed,
        )
        rate = self.learning_rate or default_learning_rate(self.n_components)
        infomax = Infomax(self.n_components, rate, self.clip_g, self.clip_h, self.tol)

        def report(unmixing: FloatArray, iteration: int) -> None:
            if self.callback is not None:
                self._keep(unmixing, iteration, study.privacy)
                self.callback(self, iteration)

        unmixing, n_iter = estimate(study, infomax, self.max_iter, report)
        self._keep(unmixing, n_iter, study.privacy)

    def _keep(self, unmixing: FloatArray, n_iter: int, privacy: PrivacyStatement) -> None:
        self.mixing_ = stable_maps(_pseudo_inverse(unmixing))
        self.unmixing_ = _pseudo_inverse(self.mixing_)
        self.components_ = self.mixing_.T
        self.n_iter_, self.privacy_ = n_iter, privacy

    def transform(self, X: Any) -> Any:
        """Return the time courses (time, components) of one subject, or of each in a list."""
        if isinstance(X, list | tuple):
            return [self.transform(subject) for subject in X]
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.unmixing_.shape[1]:
            raise InputError(f"a subject must be (time, {self.unmixing_.shape[1]}), got shape {values.shape}")
        return (values - values.mean(axis=0)) @ self.unmixing_.T


def _pseudo_inverse(matrix: FloatArray) -> FloatArray:
    inverse: FloatArray = np.linalg.pinv(matrix).astype(np.float64)
    return inverse


def stable_maps(mixing: FloatArray) -> FloatArray:
    """Scale each map to a largest absolute value of 1, positive, and sort maps by where that peak is."""
    peaks = np.argmax(np.abs(mixing), axis=0)
    heights = mixing[peaks, np.arange(mixing.shape[1])]
    scaled = mixing / np.where(heights == 0, 1.0, heights)
    return np.ascontiguousarray(scaled[:, np.argsort(peaks, kind="stable")])
