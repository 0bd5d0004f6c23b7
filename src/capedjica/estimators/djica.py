"""``CapeDJICA``: brain networks by joint ICA of data that stay at their sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, get_args

import numpy as np

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.djica import djica
from capedjica.algorithms.ica.dp_djica import dp_djica
from capedjica.algorithms.ica.infomax import B_G, B_H, TOLERANCE, Infomax
from capedjica.algorithms.ica.maps import mixing_of, pseudo_inverse
from capedjica.algorithms.ica.paper_method import PCA, PCA_SHARE, PaperMethod, PaperSite, reduce
from capedjica.algorithms.ica.scan_length import TYPICAL_SCAN, check_scan_length, longest_scan
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.pca import leading_subspace, pca_query
from capedjica.engines.embedded import EmbeddedStudy
from capedjica.errors import InputError
from capedjica.estimators.base import Estimator
from capedjica.estimators.images import Extractor, ImageOptions, is_image, series_of_sites
from capedjica.estimators.inputs import OnBad, Sites, read_sites
from capedjica.estimators.reporting import Record, estimator_report
from capedjica.mechanisms.contract import MASKS, MaskName, MechanismName, Stage
from capedjica.mechanisms.statistics import Statistics
from capedjica.mechanisms.variance import mean_noise
from capedjica.privacy import gaussian_mu, pure_mu, validate
from capedjica.privacy.budget import PrivacyBudget, check_budget
from capedjica.privacy.statement import Charge, PrivacyStatement
from capedjica.report.page import HtmlReport
from capedjica.securesum.noise import NoiseSource
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Method = Literal["subject", "paper", "djica", "dp-djica"]
METHODS: tuple[str, ...] = get_args(Method)
DEFAULT_ITERATIONS = {"paper": 1000, "djica": 1000, "dp-djica": 100}


class CapeDJICA(Estimator):
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
    method : {"subject", "paper", "djica", "dp-djica"}
        "subject": one small vector per subject and release (:mod:`capedjica.algorithms.ica.subject_level`).
        "paper": capePCA, then Algorithm 4. "djica": the non-private algorithm of Baker et al. 2018.
        "dp-djica": the algorithm of Imtiaz et al. 2016, with Laplace noise and pure epsilon for the descent.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How a mean is made private.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    mask : {"uniform", "paper"}, image or path
        Kind of the masks that hide a site's numbers. Or, as nilearn uses the word, the image of a brain mask,
        whose voxels are the features; the numbers are then hidden by uniform masks.
    basis : "auto", None or array of shape (K, n_features)
        A public basis for ``method="subject"``; "auto" is low-pass cosines if ``image_shape`` is given or the
        features are the voxels of a brain mask.
    image_shape : tuple of int, optional
        Height and width, where features are the pixels of an image in row-major order.
    max_iter : int, optional
        J, the most iterations; by default what suits the noise for "subject" (4 to 24), 1000 for "paper" and
        "djica", 100 for "dp-djica".
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
    atlas : image or path, optional
        Where subjects are images: the regions, labels (3-D) or maps (4-D), that make the features.
    masker : masker of nilearn, optional
        Used as it is if it is fitted. One that would compute its mask from the images is refused: this would
        be a statistic across people that no release pays for.
    smoothing_fwhm : float, optional
        Of images, in mm.
    standardize : bool or "zscore_sample"
        Divide every feature of an image by its standard deviation over time.
    memory : path or joblib.Memory, optional
        Folder in which series of image files are kept; a file that changed is read again.
    n_jobs : int
        Images that are read at once.
    scan_length : int
        Time points of a typical scan, from which clips and noise follow: as public as the number of subjects,
        and never read off the data. Of a longer scan the first ``4 * scan_length`` time points take part (of
        "dp-djica" ``scan_length``, to which shorter ones are extended; all of them with "djica").
    budget : PrivacyBudget, optional
        What this call is charged to, together with others. Without one epsilon stands for this call alone,
        and what several calls on the same people cost adds up (:mod:`capedjica.privacy.budget`).

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The maps, each scaled so that its largest absolute value is 1 and positive, in the order of the
        features at which they peak: both stay the same between runs that find the same maps.
    mixing_ : array of shape (n_features, n_components)
        The maps as columns.
    unmixing_ : array of shape (n_components, n_features)
        The pseudo-inverse of ``mixing_``.
    stability_ : array of shape (n_components,), or None
        How stable each map is under the noise, from 0 to 1, told without any further cost
        (:mod:`capedjica.algorithms.ica.reliability`); below 0.8 a map is not to be trusted. None for methods
        other than "subject".
    components_img_ : nibabel.nifti1.Nifti1Image
        The maps as a 4-D image in the space of the atlas or the mask, where there is one.
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
        method: Method = "subject",
        mechanism: MechanismName = "cape",
        n_colluding: int | str = "third",
        mask: MaskName | Any = "uniform",
        basis: FloatArray | Literal["auto"] | None = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int | None = None,
        learning_rate: float | None = None,
        pca_share: float = PCA_SHARE,
        clip_g: float = B_G,
        clip_h: float = B_H,
        tol: float = TOLERANCE,
        random_state: int | None = None,
        on_bad: OnBad = "raise",
        insecure_noise_seed: int | None = None,
        callback: Callable[[CapeDJICA, int], None] | None = None,
        atlas: Any = None,
        masker: Any = None,
        smoothing_fwhm: float | None = None,
        standardize: bool | str = False,
        memory: Any = None,
        n_jobs: int = 1,
        scan_length: int = TYPICAL_SCAN,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.method, self.mechanism, self.n_colluding, self.mask = method, mechanism, n_colluding, mask
        self.basis, self.image_shape = basis, image_shape
        self.max_iter, self.learning_rate, self.pca_share = max_iter, learning_rate, pca_share
        self.clip_g, self.clip_h, self.tol = clip_g, clip_h, tol
        self.random_state, self.on_bad = random_state, on_bad
        self.insecure_noise_seed, self.callback = insecure_noise_seed, callback
        self.atlas, self.masker = atlas, masker
        self.smoothing_fwhm, self.standardize = smoothing_fwhm, standardize
        self.memory, self.n_jobs, self.scan_length, self.budget = memory, n_jobs, scan_length, budget

    components_: FloatArray
    mixing_: FloatArray
    unmixing_: FloatArray
    _extractor: Extractor | None = None
    _record: Record
    stability_: FloatArray | None = None
    n_iter_: int
    privacy_: PrivacyStatement

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Estimate the networks.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is a list of subjects, a subject an array (time, features), a 4-D image, its path, or a
            list of images, the runs of one person; scans may differ in length.
        y : None
            Ignored.
        """
        self._check_parameters()
        self._extractor = self._images().open()
        series = series_of_sites(X, self._extractor, self.on_bad, self.n_jobs)
        sites = read_sites(series, self.n_components, self.on_bad, self._longest)
        n_features = next(iter(sites.values()))[0].shape[1]
        if self.method in ("subject", "paper"):
            self._fit_private(sites, n_features)
        else:
            self._fit_baseline(sites, n_features, self.max_iter or DEFAULT_ITERATIONS[self.method])
        return self

    @property
    def _longest(self) -> int | None:
        """How many time points of a scan take part; None for all."""
        if self.method == "djica":
            return None
        length = check_scan_length(self.scan_length)
        return length if self.method == "dp-djica" else longest_scan(length)

    def _images(self) -> ImageOptions:
        brain = None if self._hides(self.mask) else self.mask
        if isinstance(brain, str) and not Path(brain).exists():
            raise InputError(
                f"mask must be 'uniform', 'paper' or the image of a brain mask; there is no file {brain!r}"
            )
        return ImageOptions(
            self.atlas, brain, self.masker, self.smoothing_fwhm, self.standardize, self.memory
        )

    @staticmethod
    def _hides(mask: Any) -> TypeGuard[MaskName]:
        """Tell which of the two meanings ``mask`` has: hiding numbers, or a brain."""
        return isinstance(mask, str) and mask in MASKS

    @property
    def _hiding(self) -> MaskName:
        return self.mask if self._hides(self.mask) else "uniform"

    def _public_basis(self, n_features: int) -> FloatArray | None:
        """Return the (K, D) basis asked for, orthonormal rows; never guessed from the number of features."""
        if self.image_shape is not None and math.prod(self.image_shape) != n_features:
            raise InputError(
                f"image_shape {tuple(self.image_shape)} does not match the {n_features} features of X"
            )
        if isinstance(self.basis, str):
            if self.basis != "auto":
                raise InputError(f"basis must be 'auto', None or an array, got {self.basis!r}")
            if self.image_shape is not None:
                return low_pass(self.image_shape)
            return None if self._extractor is None else self._extractor.basis
        if self.basis is None:
            return None
        basis = np.asarray(self.basis, dtype=np.float64)
        if basis.ndim != 2 or basis.shape[1] != n_features or len(basis) < self.n_components:
            raise InputError(
                f"basis must have shape (K, {n_features}), K at least {self.n_components}; got {basis.shape}"
            )
        return np.linalg.qr(basis.T)[0].T

    def _method(self, sites: Mapping[str, Sequence[Scan]], n_features: int) -> Analysis[Any]:
        """Return the private analysis asked for."""
        if self.method == "paper":
            return PaperMethod(
                n_features,
                self.n_components,
                self.max_iter or DEFAULT_ITERATIONS["paper"],
                self.pca_share,
                self.learning_rate,
                self.clip_g,
                self.clip_h,
                self.tol,
                check_scan_length(self.scan_length),
            )
        return SubjectMethod(
            n_features,
            self.n_components,
            check_scan_length(self.scan_length),
            self._mean_noise([len(site) for site in sites.values()]),
            self.max_iter,
            self._public_basis(n_features),
        )

    def _mean_noise(self, subjects: Sequence[int]) -> float:
        if self.epsilon is None or len(subjects) < 2:  # refused elsewhere, where it is not as it should be
            return 0.0
        epsilon = min(self.epsilon.values()) if isinstance(self.epsilon, Mapping) else self.epsilon
        n_colluding = validate.colluding(self.n_colluding, len(subjects))
        mu = gaussian_mu(validate.positive("epsilon", epsilon), self.delta)
        return mean_noise(mu, subjects, n_colluding, self.mechanism, self._hiding)

    def _fit_private(self, sites: Mapping[str, Sequence[Scan]], n_features: int) -> None:
        method = self._method(sites, n_features)
        study = self._study(sites, {name: method.site(data) for name, data in sites.items()}, method.stages())

        def report(unmixing: FloatArray, iteration: int) -> None:
            self._report(unmixing, iteration, study.privacy)

        found = method.estimate(study, report)
        self._keep(found.estimate, found.n_iter, study.privacy)
        self._record = Record(study.contract, tuple(study.released))
        self.stability_ = found.stability

    def _check_parameters(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        validate.count("n_components", self.n_components, minimum=2)
        if self.max_iter is not None:
            validate.count("max_iter", self.max_iter)
        if check_scan_length(self.scan_length) < self.n_components:
            raise InputError(
                f"scan_length must be at least the {self.n_components} components, got {self.scan_length}"
            )
        for name in ("clip_g", "clip_h", "tol"):
            validate.positive(name, getattr(self, name))
        if self.learning_rate is not None:
            validate.positive("learning_rate", self.learning_rate)
        if self.method == "djica" and self.mechanism != "none":
            raise InputError(f"method 'djica' is not private: pass mechanism='none', got {self.mechanism!r}")
        if self.method == "dp-djica" and (self.mechanism == "none" or isinstance(self.epsilon, Mapping)):
            raise InputError("method 'dp-djica' needs one epsilon for all sites and a private mechanism")
        if self.method == "dp-djica" and self.mechanism == "local":
            raise InputError("method 'dp-djica' uses every site: mechanism 'local' is of one site alone")
        check_budget(self.budget, self.mechanism, self.insecure_noise_seed is not None)
        if not 0 < self.pca_share < 1:
            raise InputError(f"pca_share must lie between 0 and 1, got {self.pca_share}")

    def _fit_baseline(self, sites: Mapping[str, Sequence[Scan]], n_features: int, max_iter: int) -> None:
        """Reduce the data by capePCA, then run djICA or dp-djICA on what is left.

        Of epsilon, dp-djICA's PCA gets ``pca_share`` (with delta), its descent the rest in equal parts
        (without delta); by basic composition they add up.
        """
        epsilon, longest = self.epsilon, self._longest or max(len(data) for data in chain(*sites.values()))
        assert not isinstance(epsilon, Mapping)
        step = 0.0 if epsilon is None else (1 - self.pca_share) * epsilon / max_iter
        study = self._study(
            sites,
            {name: PaperSite(data, self.n_components, longest=longest) for name, data in sites.items()},
            [Stage(pca_query(n_features))],
            None if epsilon is None else self.pca_share * epsilon,
            0.0 if epsilon is None else math.sqrt(max_iter) * pure_mu(step),
        )
        V = leading_subspace(study.mean(PCA), self.n_components)
        self._record = Record(study.contract)
        reduced = [[reduce(data, V.astype(np.float32)) for data in site] for site in sites.values()]

        def report(unmixing: FloatArray, iteration: int, privacy: PrivacyStatement = study.privacy) -> None:
            self._report(unmixing @ V.T, iteration, privacy)

        if epsilon is None:
            result = djica(reduced, self.random_state, max_iter, report)
            return self._keep(result.unmixing @ V.T, result.n_iter, study.privacy)
        spreads: list[float] = []

        def look(infomax: Infomax, iteration: int, noise: float) -> None:
            spreads.append(noise)
            if self.callback is not None:
                report(infomax.W, iteration, _with_descent(study.privacy, epsilon, step, max_iter, spreads))

        noisy = dp_djica(
            reduced,
            step,
            max_iter,
            self.learning_rate,
            noise=NoiseSource(insecure_noise_seed=self.insecure_noise_seed, purpose="dp-djica"),
            scan_length=longest,
            progress=look,
        )
        privacy = _with_descent(study.privacy, epsilon, step, max_iter, spreads)
        return self._keep(noisy.unmixing @ V.T, noisy.n_iter, privacy)

    def _study(
        self,
        sites: Mapping[str, Sequence[Scan]],
        statistics: Mapping[str, Statistics],
        stages: Sequence[Stage],
        epsilon: float | Mapping[str, float] | None = None,
        besides: float = 0.0,
    ) -> EmbeddedStudy:
        return EmbeddedStudy(
            f"{self.method} ICA with {self.n_components} components",
            {name: len(subjects) for name, subjects in sites.items()},
            statistics,
            stages,
            epsilon=self.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            masking=self._hiding,
            n_colluding=self.n_colluding,
            insecure_noise_seed=self.insecure_noise_seed,
            budget=self.budget,
            besides=besides,
        )

    def _report(self, unmixing: FloatArray, iteration: int, privacy: PrivacyStatement) -> None:
        if self.callback is not None:
            self._keep(unmixing, iteration, privacy)
            self.callback(self, iteration)

    def _keep(self, unmixing: FloatArray, n_iter: int, privacy: PrivacyStatement) -> None:
        self.mixing_ = mixing_of(unmixing)
        self.unmixing_ = pseudo_inverse(self.mixing_)
        self.components_ = self.mixing_.T
        beyond = () if self._extractor is None else self._extractor.not_covered
        self.n_iter_ = n_iter
        self.privacy_ = replace(privacy, not_covered=privacy.not_covered + beyond)

    @property
    def components_img_(self) -> Nifti1Image:
        """The maps as a 4-D image."""
        if self._extractor is None:
            raise AttributeError("there is no image of the maps: neither mask nor atlas nor masker was given")
        return self._extractor.image(self.components_)

    def generate_report(self, title: str | None = None) -> HtmlReport:
        """Return a report for people, as nilearn's maskers and decompositions do.

        Maps, their reliability, convergence, privacy in words and numbers, and text for an article, on one
        page that needs no network. It is made from what was published, and tells of no single person.

        Parameters
        ----------
        title : str, optional
            What the analysis is about.

        Returns
        -------
        HtmlReport
            Shown by notebooks; ``save_as_html(path)`` writes it.
        """
        self._check_fitted("unmixing_")
        return estimator_report(self, self._record, title)

    def transform(self, X: Any) -> Any:
        """Return the time courses (time, components) of one subject, or of each in a list or dict."""
        self._check_fitted("unmixing_")
        if isinstance(X, Mapping):
            return {name: self.transform(site) for name, site in X.items()}
        if isinstance(X, list | tuple):
            return [self.transform(subject) for subject in X]
        values = np.asarray(self._series(X), dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.unmixing_.shape[1]:
            raise InputError(f"a subject must be (time, {self.unmixing_.shape[1]}), got shape {values.shape}")
        return (values - values.mean(axis=0)) @ self.unmixing_.T

    def _series(self, subject: Any) -> Any:
        if not is_image(subject):
            return subject
        return series_of_sites([[subject]], self._extractor, "raise", 1)["site-1"][0]


def _with_descent(
    pca: PrivacyStatement, epsilon: float, step: float, max_iter: int, noise: Sequence[float]
) -> PrivacyStatement:
    """Return the statement of dp-djICA: its PCA, and a descent with Laplace noise.

    All steps that were allowed count, whether made or not: as pure epsilons they add up to what the PCA left
    of ``epsilon``; as upper bounds by Gaussian releases (:func:`capedjica.privacy.pure_mu`) their mu^2 do.
    """
    charged = dict.fromkeys(pca.nominal_site_epsilon, pure_mu(step))
    label = "source estimates (Laplace noise)"
    return replace(
        pca,
        nominal_epsilon=epsilon,
        nominal_mu=math.hypot(pca.nominal_mu, math.sqrt(max_iter) * pure_mu(step)),
        nominal_site_epsilon=dict.fromkeys(pca.nominal_site_epsilon, epsilon),
        nominal_releases=pca.nominal_releases
        + tuple(Charge(label, charged, spread, pure_epsilon=step) for spread in noise),
        not_covered=(
            "NOT COVERED: the Laplace noise is drawn in floating point, and what its rounding gives away "
            "(Mironov 2012) is not in this epsilon.",
        ),
    )
