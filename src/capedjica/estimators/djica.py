"""``CapeDJICA``: differentially private joint ICA of fMRI data that stay at their sites."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Analysis, ReleasedMean
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.djica import djica
from capedjica.algorithms.ica.dp_djica import dp_djica
from capedjica.algorithms.ica.guided import GuidedMethod
from capedjica.algorithms.ica.individual import analyse_subject
from capedjica.algorithms.ica.infomax import Infomax
from capedjica.algorithms.ica.maps.component_number import AUTO, ComponentNumber
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.algorithms.ica.maps.template_shift import Movement
from capedjica.algorithms.ica.paper_method import PaperMethod, PaperOptions, reduce
from capedjica.algorithms.ica.scan_length import TYPICAL_SCAN, check_scan_length, longest_scan
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.template_method import TemplateMethod
from capedjica.algorithms.pca import PrincipalComponents, leading_subspace
from capedjica.data.images import scaled_to_peak
from capedjica.data.templates import NOT_COVERED, ORIGIN_WORDS, GivenTemplate, Origin, read_template
from capedjica.errors import InputError
from capedjica.estimators.base import DEPRECATED, Transformer, each, is_given, renamed, warn_of
from capedjica.estimators.images import Extractor, ImageOptions, is_image, series_of_sites
from capedjica.estimators.inputs import OnBad, Sites, feature_names, read_sites
from capedjica.mechanisms.contract import MASKS, MECHANISMS, Contract, MaskName, MechanismName
from capedjica.mechanisms.terms import Terms
from capedjica.privacy import pure_mu, validate
from capedjica.privacy.budget import PrivacyBudget, check_budget
from capedjica.privacy.statement import Charge, PrivacyStatement
from capedjica.securesum.noise import NoiseSource
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nibabel.nifti1 import Nifti1Image
    from pandas import DataFrame

    from capedjica.report.labels import MapLabels
    from capedjica.report.page import HtmlReport

Method = Literal["subject", "paper", "template", "guided", "spatial", "djica", "dp-djica"]
METHODS: tuple[str, ...] = get_args(Method)
WITH_TEMPLATE = ("template", "guided")
WITH_AUTO = ("subject", "spatial")
BASELINES = ("djica", "dp-djica")
DEFAULT_ITERATIONS = {"paper": 1000, "djica": 1000, "dp-djica": 100}


@dataclass(frozen=True, eq=False)
class Record:
    """What a fit published in addition to its maps: the contract and the means."""

    contract: Contract
    released: Sequence[ReleasedMean] = ()


class CapeDJICA(Transformer):
    """Differentially private joint ICA across sites.

    ``method`` selects the analysis, ``mechanism`` how each mean over subjects is made private. All sites run
    in this process and exchange the actual messages of the protocol.

    Parameters
    ----------
    n_components : int or "auto", optional
        Number of networks R; by default, with a template, the number of its networks. "auto" selects as many
        as are recoverable at this noise level, at most ``max_components``, for methods "subject" and
        "spatial" (:mod:`capedjica.algorithms.ica.maps.component_number`). It is the number that can be
        recovered, not the number of networks in the brain.
    epsilon : float or dict from site to float, optional
        Total privacy budget of all stages, including PCA; required unless ``mechanism="none"``. Without
        epsilon, ``method="template"`` uses the template unchanged and releases nothing.
    delta : float, default=1e-5
        Delta of the total guarantee.
    method : {"subject", "paper", "template", "guided", "spatial", "djica", "dp-djica"}, default="subject"
        The analysis:

        - "subject": one small vector per subject and release (:mod:`capedjica.algorithms.ica.subject_level`);
        - "paper": capePCA followed by Algorithm 4;
        - "template": the networks of a template, shifted by the mean difference of the subjects' own maps
          (:mod:`capedjica.algorithms.ica.template_method`);
        - "guided": the networks of these subjects, with a template as starting point;
        - "spatial": spatially independent maps;
        - "djica": the non-private algorithm of Baker et al. 2018;
        - "dp-djica": the algorithm of Imtiaz et al. 2016, with Laplace noise and pure epsilon for descent.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}, default="cape"
        Mechanism that makes a mean private.
    n_colluding : int or "third", default="third"
        Largest number of sites that may collude with the aggregator.
    masking : {"uniform", "paper"}, default="uniform"
        Kind of masks that hide the sums of a site.
    basis : "auto", None or array of shape (K, n_features), default="auto"
        Public basis for ``method="subject"``. "auto" uses low-pass cosines if ``image_shape`` is given or the
        features are the voxels of a brain mask.
    image_shape : tuple of int, optional
        Height and width, if the features are the pixels of an image in row-major order.
    max_iter : int, optional
        Maximum number of iterations J. By default it depends on the noise for "subject" (4 to 24); it is 1000
        for "paper" and "djica", and 100 for "dp-djica".
    paper_options : PaperOptions, optional
        Rarely changed settings of the paper's method. Its PCA share and learning rate also apply to
        "dp-djica".
    random_state : int, optional
        Seed for everything except privacy noise (the order of time points in "djica").
    on_bad : {"raise", "zero"}, default="raise"
        Handling of subjects that are unusable (NaN, infinity, no time points, a number of features that
        differs from the majority, a file that cannot be read) or barely usable (constant features, fewer time
        points than components, longer than ``4 * scan_length``). "raise" names the subject in an error before
        any budget is spent. "zero" does what sites do in command-line studies, where unusable subjects must
        not be identifiable: an unusable subject contributes zero and is counted, a constant feature is zero,
        and longer scans are truncated.
    insecure_noise_seed : int, optional
        Seed for reproducible noise; the result is then marked as not private.
    callback : callable, optional
        Called as ``callback(estimator, iteration)`` after each iteration; ``unmixing_`` is then the current
        estimate.
    mask_img : image or path, optional
        For subjects that are images: a brain mask, whose voxels are the features.
    atlas : image or path, optional
        For subjects that are images: a parcellation, as labels (3-D) or maps (4-D), whose regions are the
        features. For subjects that are arrays: the regions of their columns, in the order of the labels, or
        the path of a table of their centres (``x``, ``y``, ``z`` in mm), whose borders are approximate.
    masker : nilearn masker, optional
        Used unchanged if fitted. A masker that would compute its mask from the images is rejected: the mask
        would be a statistic across subjects that is charged to no release.
    smoothing_fwhm : float, optional
        Full width at half maximum of the smoothing of images, in mm.
    standardize : bool or "zscore_sample", default=False
        Divide every feature of an image by its standard deviation over time.
    memory : path or joblib.Memory, optional
        Folder in which the time series of image files are cached; a file that has changed is read again.
    n_jobs : int, default=1
        Number of images read in parallel.
    scan_length : int, default=250
        Number of time points of a typical scan, which determines clipping and noise. It is public, like the
        number of subjects, and is never derived from the data. Only the first ``4 * scan_length`` time points
        of a longer scan are used ("djica" uses all of them; "dp-djica" uses ``scan_length``, and extends
        shorter scans to it).
    budget : PrivacyBudget, optional
        Budget shared with other calls, to which this call is charged. Without one, epsilon covers this call
        alone, and the costs of several calls on the same subjects add up (:mod:`capedjica.privacy.budget`).
    template : array, image, path or Template, optional
        Known networks for methods "template" and "guided": an array (networks, features) or a ``.npy`` file
        of it, a 4-D image of maps (such as ``fetch_atlas_smith_2009()["rsn20"]`` of nilearn), a 3-D image of
        labels, or the ``results.zip`` of an earlier study (:mod:`capedjica.data.templates`).
    template_names : list of str or path, optional
        Names of the template's networks, or a table of them; by default a table next to the file.
    template_origin : {"public", "earlier-study", "other-people"}, optional
        Origin of the template, for which you are responsible: public knowledge that does not depend on any
        subject of X; results of an earlier private study; or non-private results of participants who are not
        in X. By default the origin that the template itself states, or "public".
    max_components : int, optional
        Maximum number of networks with ``n_components="auto"``. Noise and cost are those of this number.
    mask, learning_rate, pca_share, clip_g, clip_h, tol
        Deprecated: ``mask`` is now ``masking`` or ``mask_img``; the others are part of ``paper_options``.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The maps. Each is scaled so that its largest absolute value is 1 and positive, and they are ordered by
        the feature at which they peak, so that scale and order agree between runs that find the same maps.
        With a template they have its order and signs.
    mixing_ : array of shape (n_features, n_components)
        The maps as columns.
    unmixing_ : array of shape (n_components, n_features)
        The pseudo-inverse of ``mixing_``.
    components_denoised_ : array of shape (n_components, n_features), or None
        The maps with reduced noise, shrunk towards smooth maps and towards the template, if there is one
        (:mod:`capedjica.algorithms.ica.maps.denoising`). Use ``components_`` for inference. None if there is
        no prior knowledge about the maps, and for methods that use it during estimation.
    stability_ : array of shape (n_components,), or None
        Predicted correlation of each map with that of another run on the same subjects with fresh noise, at
        no further cost (:mod:`capedjica.algorithms.ica.maps.networks`); with a template, the correlation of
        the differences from it. 0.9 and above is good, 0.7 and above fair; maps below 0.7 should not be
        trusted (:mod:`capedjica.algorithms.reliability`). None for methods that cannot predict it.
    names_ : tuple of str
        Names of the networks in the template; empty without a template.
    movements_ : tuple of Movement
        Distance of each network from the template, where it was measured
        (:mod:`capedjica.algorithms.ica.maps.template_shift`).
    recoverable_ : array of shape (n_components,)
        Whether each map can be estimated from the released means; False if clipping suppressed a component
        that is far weaker than others. Such maps have a stability of 0.
    n_features_in_ : int
        Number of features D.
    feature_names_in_ : array of str
        Column names of the subjects; defined only if they were data frames.
    components_img_ : nibabel.nifti1.Nifti1Image
        The maps as a 4-D image in the space of the atlas or mask, if there is one; each volume is scaled to a
        largest absolute value of 1.
    labels_ : MapLabels
        Labels of the maps, after :meth:`label`.
    n_components_ : int
        Number of networks.
    component_number_ : ComponentNumber, or None
        Number of networks that are recoverable at this noise level; ``str`` describes it in words, and
        ``recoverable`` is None if it cannot be determined. None for methods that release no mean projector.
    n_iter_ : int
        Number of iterations run.
    privacy_ : PrivacyStatement
        The privacy guarantee, and the cost of every stage.
    """

    def __init__(
        self,
        n_components: int | Literal["auto"] | None = None,
        epsilon: float | Mapping[str, float] | None = None,
        delta: float = 1e-5,
        method: Method = "subject",
        mechanism: MechanismName = "cape",
        n_colluding: int | str = "third",
        masking: MaskName = "uniform",
        basis: FloatArray | Literal["auto"] | None = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int | None = None,
        *,
        paper_options: PaperOptions | None = None,
        random_state: int | None = None,
        on_bad: OnBad = "raise",
        insecure_noise_seed: int | None = None,
        callback: Callable[[CapeDJICA, int], None] | None = None,
        mask_img: Any = None,
        atlas: Any = None,
        masker: Any = None,
        smoothing_fwhm: float | None = None,
        standardize: bool | str = False,
        memory: Any = None,
        n_jobs: int = 1,
        scan_length: int = TYPICAL_SCAN,
        budget: PrivacyBudget | None = None,
        template: Any = None,
        template_names: Any = None,
        template_origin: Origin | None = None,
        max_components: int | None = None,
        mask: Any = DEPRECATED,
        learning_rate: Any = DEPRECATED,
        pca_share: Any = DEPRECATED,
        clip_g: Any = DEPRECATED,
        clip_h: Any = DEPRECATED,
        tol: Any = DEPRECATED,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.method, self.mechanism, self.n_colluding, self.masking = method, mechanism, n_colluding, masking
        self.basis, self.image_shape = basis, image_shape
        self.max_iter, self.paper_options = max_iter, paper_options
        self.random_state, self.on_bad = random_state, on_bad
        self.insecure_noise_seed, self.callback = insecure_noise_seed, callback
        self.mask_img, self.atlas, self.masker = mask_img, atlas, masker
        self.smoothing_fwhm, self.standardize = smoothing_fwhm, standardize
        self.memory, self.n_jobs, self.scan_length, self.budget = memory, n_jobs, scan_length, budget
        self.template, self.template_names, self.template_origin = template, template_names, template_origin
        self.max_components = max_components
        self.mask, self.learning_rate, self.pca_share = mask, learning_rate, pca_share
        self.clip_g, self.clip_h, self.tol = clip_g, clip_h, tol

    mixing_: FloatArray
    unmixing_: FloatArray
    _extractor: Extractor | None = None
    _record: Record | None = None
    _given: GivenTemplate | None = None
    _size: int
    labels_: MapLabels | None = None
    names_: tuple[str, ...] = ()
    movements_: tuple[Movement, ...] = ()
    stability_: FloatArray | None = None
    recoverable_: NDArray[np.bool_]
    n_components_: int
    component_number_: ComponentNumber | None = None
    components_denoised_: FloatArray | None = None
    n_iter_: int

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Estimate the networks.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is a list of subjects. A subject is an array (time, features), a 4-D image, its path, or a
            list of images (the runs of one participant). Scans may differ in length.
        y : None
            Ignored.

        Returns
        -------
        self : CapeDJICA
            The fitted estimator.
        """
        self._check_parameters()
        options, terms = self._paper_options(), self._terms()
        images = ImageOptions(
            self.atlas, self._mask_img(), self.masker, self.smoothing_fwhm, self.standardize, self.memory
        )
        self._extractor = images.open()
        self._given = self._read_template()
        self._size = self._check_size()
        series = series_of_sites(X, self._extractor, self.on_bad, self.n_jobs)
        sites = read_sites(series, self._size, self.on_bad, self._longest)
        n_features = next(iter(sites.values()))[0].shape[1]
        if self._extractor is not None and self._extractor.n_features != n_features:
            raise InputError(
                f"X: subjects have {n_features:,} features, but the atlas or mask has "
                f"{self._extractor.n_features:,}; every column must be one of its regions or voxels"
            )
        if self._known is not None and self._known.n_features != n_features:
            raise InputError(
                f"template has {self._known.n_features:,} features, but the subjects of X have {n_features:,}"
            )
        self._know_features(n_features, feature_names(X))
        if self._as_known:
            self._keep_known(sites)
            return self
        fit = self._fit_baseline if self.method in BASELINES else self._fit_private
        fit(sites, n_features, options, terms)
        return self

    @property
    def _known(self) -> Template | None:
        return None if self._given is None else self._given.template

    @property
    def _as_known(self) -> bool:
        """Whether the template is used unchanged and nothing is released."""
        return self.method == "template" and self.epsilon is None and self.mechanism != "none"

    def _read_template(self) -> GivenTemplate | None:
        uses = self.method in WITH_TEMPLATE
        if self.template is None:
            if uses:
                raise InputError(f"method {self.method!r} needs a template; pass template=...")
            for name in ("template_names", "template_origin"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} requires a template; pass template=... or remove {name}")
            return None
        if not uses:
            raise InputError(
                f"template is only for methods 'template' and 'guided', got method {self.method!r}"
            )
        given = read_template(self.template, self._extractor, names=self.template_names)
        given.origin(self.template_origin)
        return given

    def _check_size(self) -> int:
        """Return R, as given or as the number of networks of the template; raise an error if invalid."""
        if self.n_components == AUTO:
            if self.method not in WITH_AUTO:
                raise InputError(
                    f"n_components='auto' is only for methods {' and '.join(map(repr, WITH_AUTO))}, got "
                    f"method {self.method!r}; give a number"
                )
            size = validate.count("max_components", self.max_components, minimum=2)
        elif self.max_components is not None:
            raise InputError(
                f"max_components is only for n_components='auto', got n_components={self.n_components!r}"
            )
        elif self._known is None:
            size = validate.count("n_components", self.n_components, minimum=2)
        else:
            size = self._known.n_networks
            if self.n_components not in (None, size):
                raise InputError(
                    f"n_components must be {size}, the number of networks of the template, or None; "
                    f"got {self.n_components}"
                )
        if check_scan_length(self.scan_length) < size:
            raise InputError(
                f"scan_length must be at least {size}, the number of components; got {self.scan_length}"
            )
        return size

    def _keep_known(self, sites: Mapping[str, Sequence[Scan]]) -> None:
        """Use the template unchanged: the data are not used, so nothing is spent."""
        assert self._known is not None
        statement = PrivacyStatement(
            nominal_epsilon=0.0,
            delta=self.delta,
            nominal_mu=0.0,
            nominal_releases=(),
            nominal_site_epsilon=dict.fromkeys(sites, 0.0),
            mechanism=self.mechanism,
            n_sites=len(sites),
            n_colluding=validate.colluding(self.n_colluding, len(sites)),
        )
        self._record = None
        self._keep(Networks(pseudo_inverse(self._known.maps.T), template=self._known), statement)

    @property
    def _longest(self) -> int | None:
        """Largest number of time points of a scan that are used; None for all."""
        if self.method == "djica":
            return None
        length = check_scan_length(self.scan_length)
        return length if self.method == "dp-djica" else longest_scan(length)

    def _masking(self) -> MaskName:
        return super()._masking() if _hides(self.mask) else self.masking

    def _mask_img(self) -> Any:
        mask = self.mask
        if _hides(mask):
            return self.mask_img
        if isinstance(mask, str) and is_given(mask) and not Path(mask).exists():
            raise InputError(
                f"mask must be 'uniform', 'paper' or the image of a brain mask; file {mask!r} does not exist"
            )
        return renamed("mask", mask, "mask_img", self.mask_img, None)

    def _paper_options(self) -> PaperOptions:
        names = [field.name for field in fields(PaperOptions)]
        old = {name: getattr(self, name) for name in names if is_given(getattr(self, name))}
        if old and self.paper_options is not None:
            raise InputError(f"{next(iter(old))} is part of paper_options: give it only there")
        for name in old:
            warn_of(name, f"paper_options=PaperOptions({name}=...)")
        return self.paper_options or PaperOptions(**old)

    def _public_basis(self, n_features: int) -> FloatArray | None:
        """Return the (K, D) basis with orthonormal rows; it is never guessed from the number of features."""
        if self.image_shape is not None and math.prod(self.image_shape) != n_features:
            raise InputError(
                f"image_shape {tuple(self.image_shape)} must match the {n_features} features of X"
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
        if basis.ndim != 2 or basis.shape[1] != n_features or len(basis) < self._size:
            raise InputError(
                f"basis must have shape (K, {n_features}) with K at least {self._size}, got {basis.shape}"
            )
        return np.linalg.qr(basis.T)[0].T

    def _analysis(
        self, subjects: Sequence[int], n_features: int, options: PaperOptions, terms: Terms
    ) -> Analysis[Networks]:
        """Return the private analysis for ``method``."""
        n_components, length = self._size, check_scan_length(self.scan_length)
        if self.method == "paper":
            max_iter = self.max_iter or DEFAULT_ITERATIONS["paper"]
            return PaperMethod(n_features, n_components, max_iter, length, **vars(options))
        noise, basis = terms.mean_noise(subjects), self._public_basis(n_features)
        auto = self.n_components == AUTO
        if self.method == "spatial":
            return SpatialMethod(n_features, n_components, length, noise, basis, auto)
        if self._known is not None and self.method == "template":
            return TemplateMethod(self._known, length, noise, basis=basis)
        if self._known is not None:
            return GuidedMethod(self._known, length, noise, self.max_iter, basis)
        return SubjectMethod(n_features, n_components, length, noise, self.max_iter, basis, auto)

    @property
    def _title(self) -> str:
        most = "at most " if self.n_components == AUTO else ""
        return f"{self.method} ICA with {most}{self._size} components"

    def _fit_private(
        self, sites: Mapping[str, Sequence[Scan]], n_features: int, options: PaperOptions, terms: Terms
    ) -> None:
        analysis = self._analysis([len(site) for site in sites.values()], n_features, options, terms)
        study = self._study(self._title, analysis, sites, terms)

        def report(unmixing: FloatArray, iteration: int) -> None:
            self._report(unmixing, iteration, study.privacy)

        found = analysis.estimate(study, report)
        self._keep(found, study.privacy)
        if found.number is not None and found.number.warning:
            warnings.warn(found.number.warning, stacklevel=3)
        self._record = Record(study.contract, tuple(study.released))

    def _check_parameters(self) -> None:
        validate.choice("method", self.method, METHODS)
        validate.choice("mechanism", self.mechanism, MECHANISMS)
        _check_shape(self.image_shape)
        if not isinstance(self.n_jobs, Integral) or self.n_jobs == 0:
            raise InputError(f"n_jobs must be an integer other than 0, got {self.n_jobs!r}")
        if self.random_state is not None:
            validate.count("random_state", self.random_state, minimum=0)
        if self.max_iter is not None:
            validate.count("max_iter", self.max_iter)
            if self.method in ("template", "spatial"):
                raise InputError(f"max_iter does not apply to method {self.method!r}, which does not iterate")
        if not _hides(self.masking):
            raise InputError(
                f"masking must be 'uniform' or 'paper', got {self.masking!r}; pass a brain mask as mask_img"
            )
        if not isinstance(self.paper_options, PaperOptions | None):
            raise InputError(f"paper_options must be a PaperOptions, got {type(self.paper_options).__name__}")
        if self.method == "djica" and self.mechanism != "none":
            raise InputError(f"method 'djica' is not private; pass mechanism='none', got {self.mechanism!r}")
        if self.method == "dp-djica" and (self.mechanism == "none" or isinstance(self.epsilon, Mapping)):
            raise InputError(
                "method 'dp-djica' needs one epsilon for all sites and a private mechanism; "
                f"got epsilon={self.epsilon!r} and mechanism={self.mechanism!r}"
            )
        if self.method == "dp-djica" and self.mechanism == "local":
            raise InputError("method 'dp-djica' uses all sites; mechanism 'local' uses a single site")
        check_budget(self.budget, self.mechanism, self.insecure_noise_seed is not None)

    def _fit_baseline(
        self, sites: Mapping[str, Sequence[Scan]], n_features: int, options: PaperOptions, terms: Terms
    ) -> None:
        """Reduce the data by capePCA, then run djICA or dp-djICA on the reduced data.

        In dp-djICA, the PCA uses the fraction ``pca_share`` of epsilon (with delta), and the descent the rest
        in equal parts (without delta); by basic composition they add up.
        """
        epsilon, longest = self.epsilon, self._longest or max(len(data) for data in chain(*sites.values()))
        assert not isinstance(epsilon, Mapping)
        max_iter = self.max_iter or DEFAULT_ITERATIONS[self.method]
        step = besides = 0.0
        if epsilon is not None:
            terms = replace(terms, epsilon=options.pca_share * epsilon)
            step = (1 - options.pca_share) * epsilon / max_iter
            besides = math.sqrt(max_iter) * pure_mu(step)
        pca = PrincipalComponents(n_features, self._size, longest=longest)
        study = self._study(self._title, pca, sites, terms, besides=besides)
        V = leading_subspace(study.mean(0), self._size)
        self._record = Record(study.contract)
        reduced = [[reduce(data, V.astype(np.float32)) for data in site] for site in sites.values()]

        def report(unmixing: FloatArray, iteration: int, privacy: PrivacyStatement = study.privacy) -> None:
            self._report(unmixing @ V.T, iteration, privacy)

        if epsilon is None:
            result = djica(reduced, self.random_state, max_iter, report)
            return self._keep(Networks(result.unmixing @ V.T, n_iter=result.n_iter), study.privacy)
        spreads: list[float] = []

        def look(infomax: Infomax, iteration: int, noise: float) -> None:
            spreads.append(noise)
            if self.callback is not None:
                report(infomax.W, iteration, _with_descent(study.privacy, epsilon, step, max_iter, spreads))

        noisy = dp_djica(
            reduced,
            step,
            max_iter,
            options.learning_rate,
            noise=NoiseSource(insecure_noise_seed=self.insecure_noise_seed, purpose="dp-djica"),
            scan_length=longest,
            progress=look,
        )
        privacy = _with_descent(study.privacy, epsilon, step, max_iter, spreads)
        return self._keep(Networks(noisy.unmixing @ V.T, n_iter=noisy.n_iter), privacy)

    def _report(self, unmixing: FloatArray, iteration: int, privacy: PrivacyStatement) -> None:
        if self.callback is not None:
            self._keep(Networks(unmixing, template=self._known, n_iter=iteration), privacy)
            self.callback(self, iteration)

    def _keep(self, found: Networks, privacy: PrivacyStatement) -> None:
        self.mixing_, self.components_, self.unmixing_ = found.mixing, found.maps, found.unmixing
        self.n_components_, self.component_number_ = len(found.estimate), found.number
        self.stability_, self.n_iter_ = found.stability, found.n_iter
        self.recoverable_, self.labels_ = found.recoverable, None
        self.components_denoised_ = found.denoised
        self.names_, self.movements_ = found.names, found.movements
        beyond = () if self._extractor is None else self._extractor.not_covered
        if self._given is not None:
            beyond += (NOT_COVERED[self._given.origin(self.template_origin) or "public"],)
        self.privacy_ = replace(privacy, not_covered=privacy.not_covered + beyond)

    @property
    def template_words(self) -> tuple[str, str]:
        """Origin of the template as a sentence, and its source; both empty without a template."""
        if self._given is None:
            return "", ""
        origin = self._given.origin(self.template_origin) or "public"
        return (
            f"The template ({self._given.source}) is assumed to be {ORIGIN_WORDS[origin]}.",
            self._given.source,
        )

    @property
    def components_img_(self) -> Nifti1Image:
        """The maps as a 4-D image."""
        image = self.image_of(self.components_)
        if image is None:
            raise AttributeError(
                "components_img_ is not available: none of mask_img, atlas and masker was given"
            )
        return image

    def image_of(self, maps: FloatArray) -> Nifti1Image | None:
        """Return maps (n, n_features) as a 4-D image, each with 1 as its largest absolute value.

        Parameters
        ----------
        maps : array of shape (n, n_features)
            ``components_`` or ``components_denoised_``, for example.

        Returns
        -------
        Nifti1Image or None
            None where features have no spatial positions: neither mask_img nor atlas nor masker was given.
        """
        return None if self._extractor is None else scaled_to_peak(self._extractor.image(maps))

    @property
    def approximate_regions(self) -> bool:
        """Whether maps are drawn in regions of which only the centres are known."""
        return self._extractor is not None and self._extractor.approximate

    def label(
        self, labels: Any = None, names: Any = None, *, csf: Any = None, white_matter: Any = None
    ) -> DataFrame:
        """Compare the maps with an atlas or template, and flag artefacts. This has no privacy cost.

        Parameters
        ----------
        labels : image, path, array or "nilearn:NAME", optional
            Known networks or regions: a 4-D image of maps, a 3-D image of labels, an array (networks,
            features), a label for each feature, or an atlas that nilearn downloads, for example
            "nilearn:msdl" (:mod:`capedjica.data.references`).
        names : list of str or path, optional
            Their names, or a table of names, with systems if it has such a column; by default a table next to
            the file.
        csf, white_matter : image or path, optional
            Masks of the ventricles and of white matter, binary or probabilistic.

        Returns
        -------
        DataFrame
            A row for each map: its name, its peak, the best matches, and the fraction of it that lies in
            regions typical of artefacts (:mod:`capedjica.report.labels`). The same labels are stored as
            ``labels_``, and shown by :meth:`generate_report`.
        """
        from pandas import DataFrame

        from capedjica.report.labels import LabelSources, label_table

        self._check_fitted("unmixing_")
        image = None if self._extractor is None else self.components_img_
        sources = LabelSources.read(labels, names, csf, white_matter)
        voxels = self._extractor is not None and self._extractor.basis is not None
        placed = sources.placed(image, self.components_.shape[1], voxels)
        self.labels_ = placed.label(self.components_, image, self.names_)
        table = label_table(self.labels_)
        return DataFrame(table.rows, columns=list(table.columns))

    def generate_report(self, title: str | None = None) -> HtmlReport:
        """Return an HTML report, as nilearn's maskers and decompositions do.

        One self-contained page with the maps, their reliability, convergence, the privacy guarantee in words
        and numbers, and text for an article. It is computed from what was published, and shows no single
        subject.

        Parameters
        ----------
        title : str, optional
            Title of the report.

        Returns
        -------
        HtmlReport
            Displayed by notebooks; ``save_as_html(path)`` writes it to a file.
        """
        # Imported on first use: the pictures of a report need matplotlib.
        from capedjica.estimators.reporting import estimator_report

        self._check_fitted("unmixing_")
        if self._record is None:
            raise InputError(
                "there is nothing to report: nothing was released, and the maps are those of the template"
            )
        return estimator_report(self, self._record, title)

    def transform(self, X: Any) -> Any:
        """Return the time courses (time, components) of one subject, or of each in a list or dict."""
        return super().transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the template's networks, or the class name and a number, as in scikit-learn.

        Parameters
        ----------
        input_features : None
            Ignored: every component depends on all features.
        """
        usual = super().get_feature_names_out()
        return np.array(self.names_, dtype=object) if self.names_ else usual

    def plot_components(self, title: str | None = None) -> Figure:
        """Plot the maps: brain slices, images, or one value for each feature.

        Maps that are not reliable (:mod:`capedjica.algorithms.reliability`) are faded, and the title begins
        with a note on reliability.

        Parameters
        ----------
        title : str, optional
            Title of the figure.

        Returns
        -------
        matplotlib.figure.Figure
            Displayed by notebooks; ``savefig(path)`` writes it to a file.
        """
        from capedjica.estimators.reporting import components_figure

        self._check_fitted("components_")
        return components_figure(self, title)

    plot_maps = plot_components

    def subject_maps(self, X: Any) -> Any:
        """Return the individual maps (components, features) of one subject, or of each in a list or dict.

        They are computed by dual regression (:mod:`capedjica.algorithms.ica.individual`): first the time
        courses that best explain a scan given the group's maps, standardised, then the maps that best explain
        the scan given these time courses. They describe single subjects, and are not private.
        """
        self._check_fitted("unmixing_")
        return each(lambda subject: analyse_subject([self._series(subject)], self.unmixing_).maps, X)

    def _transform_one(self, subject: Any) -> Any:
        return self._centred(subject) @ self.unmixing_.T

    def _centred(self, subject: Any) -> FloatArray:
        values = self._series(subject)
        centred: FloatArray = values - values.mean(axis=0)
        return centred

    def _series(self, subject: Any) -> FloatArray:
        if is_image(subject):
            subject = series_of_sites([[subject]], self._extractor, "raise", 1)["site-1"][0]
        return self._table(subject)


def _check_shape(shape: Any) -> None:
    """Reject anything but the height and width of an image."""
    if shape is None:
        return
    if not isinstance(shape, list | tuple) or len(shape) != 2:
        raise InputError(f"image_shape must be a pair (height, width), got {shape!r}")
    for side in shape:
        validate.count("a side of image_shape", side)


def _hides(mask: Any) -> TypeGuard[MaskName]:
    """Return whether this is a kind of masking, rather than a brain mask."""
    return isinstance(mask, str) and mask in MASKS


def _with_descent(
    pca: PrivacyStatement, epsilon: float, step: float, max_iter: int, noise: Sequence[float]
) -> PrivacyStatement:
    """Return the privacy statement of dp-djICA: its PCA, and a descent with Laplace noise.

    All permitted steps count, whether run or not. As pure epsilons they add up to what the PCA leaves of
    ``epsilon``; as upper bounds by Gaussian releases (:func:`capedjica.privacy.pure_mu`) their mu^2 add up.
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
            "NOT COVERED: the Laplace noise is drawn in floating point, and what its rounding reveals "
            "(Mironov 2012) is not included in this epsilon.",
        ),
    )
