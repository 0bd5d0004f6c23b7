"""``CapeDJICA``: brain networks by joint ICA of data that stay at their sites."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Analysis
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
from capedjica.estimators.reporting import Record, components_figure, estimator_report
from capedjica.mechanisms.contract import MASKS, MECHANISMS, MaskName, MechanismName
from capedjica.mechanisms.terms import Terms
from capedjica.privacy import pure_mu, validate
from capedjica.privacy.budget import PrivacyBudget, check_budget
from capedjica.privacy.statement import Charge, PrivacyStatement
from capedjica.report.labels import LabelSources, MapLabels, label_table
from capedjica.report.page import HtmlReport
from capedjica.securesum.noise import NoiseSource
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nibabel.nifti1 import Nifti1Image
    from pandas import DataFrame

Method = Literal["subject", "paper", "template", "guided", "spatial", "djica", "dp-djica"]
METHODS: tuple[str, ...] = get_args(Method)
WITH_TEMPLATE = ("template", "guided")
WITH_AUTO = ("subject", "spatial")
BASELINES = ("djica", "dp-djica")
DEFAULT_ITERATIONS = {"paper": 1000, "djica": 1000, "dp-djica": 100}


class CapeDJICA(Transformer):
    """Joint ICA across sites, with every release accounted for.

    ``method`` says what is computed, ``mechanism`` how each mean over subjects is made private. All sites run
    in this process and exchange the protocol's real bytes.

    Parameters
    ----------
    n_components : int or "auto", optional
        R, the number of networks; with a template those it has. "auto": as many as the noise lets through, at
        most ``max_components``, for methods "subject" and "spatial"
        (:mod:`capedjica.algorithms.ica.maps.component_number`). It says what can be recovered, not how many
        networks there are.
    epsilon : float or dict from site to float, optional
        Total budget for all stages together, PCA included; required unless ``mechanism="none"``. Without one
        ``method="template"`` takes the template as it is, and releases nothing.
    delta : float
        Of the total guarantee.
    method : {"subject", "paper", "template", "guided", "spatial", "djica", "dp-djica"}
        "subject": one small vector per subject and release (:mod:`capedjica.algorithms.ica.subject_level`).
        "paper": capePCA, then Algorithm 4. "template": the networks of a template, moved by the mean
        difference of everybody's own maps (:mod:`capedjica.algorithms.ica.template_method`). "guided": from a
        template to the networks of these people. "spatial": maps that are independent. "djica": the
        non-private algorithm of Baker et al. 2018. "dp-djica": the algorithm of Imtiaz et al. 2016, with
        Laplace noise and pure epsilon for the descent.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How a mean is made private.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    masking : {"uniform", "paper"}
        Kind of masks that hide a site's numbers.
    basis : "auto", None or array of shape (K, n_features)
        A public basis for ``method="subject"``; "auto" is low-pass cosines if ``image_shape`` is given or the
        features are the voxels of a brain mask.
    image_shape : tuple of int, optional
        Height and width, where features are the pixels of an image in row-major order.
    max_iter : int, optional
        J, the most iterations; by default what suits the noise for "subject" (4 to 24), 1000 for "paper" and
        "djica", 100 for "dp-djica".
    paper_options : PaperOptions, optional
        What is rarely changed of the paper's method; its share of the PCA and its learning rate also hold for
        "dp-djica".
    random_state : int, optional
        Seeds what is not privacy noise (the order of time points in "djica").
    on_bad : {"raise", "zero"}
        What to do about subjects that cannot be used (NaN, infinity, no time points, another number of
        features than most, a file that cannot be read) or hardly (constant features, fewer time points than
        components, longer than ``4 * scan_length``). "raise" says which before anything is spent. "zero" is
        what sites do in studies of the command line, where nobody may learn who it was: who cannot be used
        contributes zero and is counted, a constant feature is zero, and longer scans are cut.
    insecure_noise_seed : int, optional
        Reproducible noise; the result is marked as not private.
    callback : callable, optional
        ``callback(estimator, iteration)`` after each iteration, when ``unmixing_`` is the current estimate.
    mask_img : image or path, optional
        Where subjects are images: a brain mask, whose voxels are the features.
    atlas : image or path, optional
        Where subjects are images: the regions, labels (3-D) or maps (4-D), that make the features. Where
        they are arrays, the regions that their columns are, in the order of the labels.
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
    template : array, image, path or Template, optional
        Networks that are known, for methods "template" and "guided": an array (networks, features) or a
        ``.npy`` file of it, a 4-D image of maps (``fetch_atlas_smith_2009()["rsn20"]`` of nilearn for
        example), a 3-D image of labels, or the ``results.zip`` of an earlier study
        (:mod:`capedjica.data.templates`).
    template_names : list of str or path, optional
        What its networks are called, or a table of that; by default a table beside the file.
    template_origin : {"public", "earlier-study", "other-people"}, optional
        What you vouch for: public knowledge that nobody of X is part of; results of an earlier private study;
        results without privacy, of other people than those of X. By default what the template itself tells,
        or public.
    max_components : int, optional
        With ``n_components="auto"`` the most networks there may be. Noise and cost are those of as many.
    mask, learning_rate, pca_share, clip_g, clip_h, tol
        Old names: of ``masking`` or ``mask_img``, and of what is in ``paper_options``.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The maps, each scaled so that its largest absolute value is 1 and positive, in the order of the
        features at which they peak: both stay the same between runs that find the same maps. With a template
        they are in its order, and point its way.
    mixing_ : array of shape (n_features, n_components)
        The maps as columns.
    unmixing_ : array of shape (n_components, n_features)
        The pseudo-inverse of ``mixing_``.
    components_denoised_ : array of shape (n_components, n_features), or None
        The maps with less noise, drawn towards what is smooth and towards the template, if there is one
        (:mod:`capedjica.algorithms.ica.maps.denoising`); ``components_`` are those for inference. None where
        nothing is known of maps beforehand, and for methods that have used it already.
    stability_ : array of shape (n_components,), or None
        The correlation that each map is predicted to have with that of another run of the same participants
        with fresh noise, told without any further cost (:mod:`capedjica.algorithms.ica.maps.networks`); with
        a template that of the difference from it. From 0.9 good, from 0.7 fair, below not to be trusted
        (:mod:`capedjica.algorithms.reliability`). None for methods that cannot tell.
    names_ : tuple of str
        What the template calls the networks; empty without one.
    movements_ : tuple of Movement
        How far each network is from the template, where that was measured
        (:mod:`capedjica.algorithms.ica.maps.template_shift`).
    recoverable_ : array of shape (n_components,)
        Whether each map can be told from what was published; False where clipping has buried a component
        that is far weaker than others. Such maps have a stability of 0.
    n_features_in_ : int
        D.
    feature_names_in_ : array of str
        The columns of the subjects, where they were data frames.
    components_img_ : nibabel.nifti1.Nifti1Image
        The maps as a 4-D image in the space of the atlas or the mask, where there is one; each volume is
        scaled to a largest absolute value of 1.
    labels_ : MapLabels
        What the maps may be, after :meth:`label`.
    n_components_ : int
        The number of networks.
    component_number_ : ComponentNumber, or None
        How many the noise lets through, and in words by ``str``; ``recoverable`` is None where that is not
        determinable. None for methods that release no mean projector.
    n_iter_ : int
        Iterations made.
    privacy_ : PrivacyStatement
        The guarantee, and what every stage cost.
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
            A site is a list of subjects, a subject an array (time, features), a 4-D image, its path, or a
            list of images, the runs of one person; scans may differ in length.
        y : None
            Ignored.
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
                f"the subjects of X have {n_features:,} features, the atlas or mask has "
                f"{self._extractor.n_features:,}: every column must be one of its regions or voxels"
            )
        if self._known is not None and self._known.n_features != n_features:
            raise InputError(
                f"template has {self._known.n_features:,} features, the subjects of X have {n_features:,}"
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
        """Whether the template is taken as it is, and nothing is released."""
        return self.method == "template" and self.epsilon is None and self.mechanism != "none"

    def _read_template(self) -> GivenTemplate | None:
        uses = self.method in WITH_TEMPLATE
        if self.template is None:
            if uses:
                raise InputError(f"method {self.method!r} needs template, the networks that are known")
            for name in ("template_names", "template_origin"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} is given, but no template")
            return None
        if not uses:
            raise InputError(f"template is for methods 'template' and 'guided', got method {self.method!r}")
        given = read_template(self.template, self._extractor, names=self.template_names)
        given.origin(self.template_origin)
        return given

    def _check_size(self) -> int:
        """Return R, what was said of it or what the template has; refuse what cannot be."""
        if self.n_components == AUTO:
            if self.method not in WITH_AUTO:
                raise InputError(
                    f"n_components='auto' is for methods {' and '.join(map(repr, WITH_AUTO))}, got method "
                    f"{self.method!r}: give a number"
                )
            size = validate.count("max_components", self.max_components, minimum=2)
        elif self.max_components is not None:
            raise InputError(f"max_components is for n_components='auto', got {self.n_components!r}")
        elif self._known is None:
            size = validate.count("n_components", self.n_components, minimum=2)
        else:
            size = self._known.n_networks
            if self.n_components not in (None, size):
                raise InputError(f"n_components is {self.n_components}, the template has {size} networks")
        if check_scan_length(self.scan_length) < size:
            raise InputError(f"scan_length must be at least the {size} components, got {self.scan_length}")
        return size

    def _keep_known(self, sites: Mapping[str, Sequence[Scan]]) -> None:
        """Take the template as it is: nobody is asked, so nothing is spent."""
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
        """How many time points of a scan take part; None for all."""
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
                f"mask must be 'uniform', 'paper' or the image of a brain mask; there is no file {mask!r}"
            )
        return renamed("mask", mask, "mask_img", self.mask_img, None)

    def _paper_options(self) -> PaperOptions:
        names = [field.name for field in fields(PaperOptions)]
        old = {name: getattr(self, name) for name in names if is_given(getattr(self, name))}
        if old and self.paper_options is not None:
            raise InputError(f"{next(iter(old))} is part of paper_options: give it there alone")
        for name in old:
            warn_of(name, f"paper_options=PaperOptions({name}=...)")
        return self.paper_options or PaperOptions(**old)

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
        if basis.ndim != 2 or basis.shape[1] != n_features or len(basis) < self._size:
            raise InputError(
                f"basis must have shape (K, {n_features}), K at least {self._size}; got {basis.shape}"
            )
        return np.linalg.qr(basis.T)[0].T

    def _analysis(
        self, subjects: Sequence[int], n_features: int, options: PaperOptions, terms: Terms
    ) -> Analysis[Networks]:
        """Return the private analysis asked for."""
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
            raise InputError(f"n_jobs must be a whole number other than 0, got {self.n_jobs!r}")
        if self.random_state is not None:
            validate.count("random_state", self.random_state, minimum=0)
        if self.max_iter is not None:
            validate.count("max_iter", self.max_iter)
            if self.method in ("template", "spatial"):
                raise InputError(f"max_iter is not for method {self.method!r}, which does not iterate")
        if not _hides(self.masking):
            raise InputError(
                f"masking must be 'uniform' or 'paper', got {self.masking!r}; a brain mask is mask_img"
            )
        if not isinstance(self.paper_options, PaperOptions | None):
            raise InputError(f"paper_options must be a PaperOptions, got {type(self.paper_options).__name__}")
        if self.method == "djica" and self.mechanism != "none":
            raise InputError(f"method 'djica' is not private: pass mechanism='none', got {self.mechanism!r}")
        if self.method == "dp-djica" and (self.mechanism == "none" or isinstance(self.epsilon, Mapping)):
            raise InputError("method 'dp-djica' needs one epsilon for all sites and a private mechanism")
        if self.method == "dp-djica" and self.mechanism == "local":
            raise InputError("method 'dp-djica' uses every site: mechanism 'local' is of one site alone")
        check_budget(self.budget, self.mechanism, self.insecure_noise_seed is not None)

    def _fit_baseline(
        self, sites: Mapping[str, Sequence[Scan]], n_features: int, options: PaperOptions, terms: Terms
    ) -> None:
        """Reduce the data by capePCA, then run djICA or dp-djICA on what is left.

        Of epsilon, dp-djICA's PCA gets ``pca_share`` (with delta), its descent the rest in equal parts
        (without delta); by basic composition they add up.
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
        self.mixing_, self.components_ = found.mixing, found.maps
        self.unmixing_ = pseudo_inverse(self.mixing_)
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
        """Where the template comes from, in a sentence and in few words; empty without one."""
        if self._given is None:
            return "", ""
        origin = self._given.origin(self.template_origin) or "public"
        return f"The template ({self._given.source}) is taken for {ORIGIN_WORDS[origin]}.", self._given.source

    @property
    def components_img_(self) -> Nifti1Image:
        """The maps as a 4-D image."""
        image = self.image_of(self.components_)
        if image is None:
            raise AttributeError(
                "there is no image of the maps: neither mask_img nor atlas nor masker was given"
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
            None where features have no places: neither mask_img nor atlas nor masker was given.
        """
        return None if self._extractor is None else scaled_to_peak(self._extractor.image(maps))

    def label(
        self, labels: Any = None, names: Any = None, *, csf: Any = None, white_matter: Any = None
    ) -> DataFrame:
        """Compare the maps with an atlas or template, and look for artefacts; it costs nothing.

        Parameters
        ----------
        labels : image, path, array or "nilearn:NAME", optional
            Known networks or regions: a 4-D image of maps, a 3-D image of labels, an array (networks,
            features), a label for each feature, or an atlas that nilearn downloads, "nilearn:msdl" for
            example (:mod:`capedjica.data.references`).
        names : list of str or path, optional
            What they are called, or a table of that, with systems if it has such a column; by default a table
            beside the file.
        csf, white_matter : image or path, optional
            Masks of the ventricles and of white matter, 0 and 1 or probabilities.

        Returns
        -------
        DataFrame
            A row for each map: its name, its peak, the best matches, and what of it lies where artefacts do
            (:mod:`capedjica.report.labels`). The same is kept as ``labels_``, and shown by
            :meth:`generate_report`.
        """
        from pandas import DataFrame

        self._check_fitted("unmixing_")
        image = None if self._extractor is None else self.components_img_
        sources = LabelSources.read(labels, names, csf, white_matter)
        voxels = self._extractor is not None and self._extractor.basis is not None
        placed = sources.placed(image, self.components_.shape[1], voxels)
        self.labels_ = placed.label(self.components_, image, self.names_)
        table = label_table(self.labels_)
        return DataFrame(table.rows, columns=list(table.columns))

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
        if self._record is None:
            raise InputError("there is nothing to report: nothing was released, the maps are the template's")
        return estimator_report(self, self._record, title)

    def transform(self, X: Any) -> Any:
        """Return the time courses (time, components) of one subject, or of each in a list or dict."""
        return super().transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return what the template calls the networks, or the class and a number, as in scikit-learn.

        Parameters
        ----------
        input_features : None
            Ignored: components are made of all features.
        """
        usual = super().get_feature_names_out()
        return np.array(self.names_, dtype=object) if self.names_ else usual

    def plot_components(self, title: str | None = None) -> Figure:
        """Return a figure of the maps: slices of a brain, images, or one number for each feature.

        Maps that are not reliable (:mod:`capedjica.algorithms.reliability`) are faded; the title begins with
        it.

        Parameters
        ----------
        title : str, optional
            What stands above.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by notebooks; ``savefig(path)`` writes it.
        """
        self._check_fitted("components_")
        return components_figure(self, title)

    plot_maps = plot_components

    def subject_maps(self, X: Any) -> Any:
        """Return the own maps (components, features) of one subject, or of each in a list or dict.

        By dual regression (:mod:`capedjica.algorithms.ica.individual`): the time courses that explain a scan
        best given the group's maps, standardised, then the maps that explain it best given these. They are
        about single people, and not private.
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
    """Refuse what is not the height and the width of an image."""
    if shape is None:
        return
    if not isinstance(shape, list | tuple) or len(shape) != 2:
        raise InputError(f"image_shape must be a pair (height, width), got {shape!r}")
    for side in shape:
        validate.count("a side of image_shape", side)


def _hides(mask: Any) -> TypeGuard[MaskName]:
    """Tell whether this is a kind of masks that hide numbers, rather than a brain mask."""
    return isinstance(mask, str) and mask in MASKS


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
