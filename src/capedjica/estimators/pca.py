"""``CapePCA``: private principal components across sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from capedjica.algorithms.pca import PrincipalComponents
from capedjica.errors import InputError
from capedjica.estimators.base import DEPRECATED, Transformer
from capedjica.estimators.inputs import OnBad, Sites, feature_names, read_sites
from capedjica.mechanisms.contract import MaskName, MechanismName
from capedjica.privacy import validate
from capedjica.privacy.budget import PrivacyBudget
from capedjica.privacy.neighbour import Neighbour, ProtectedUnit
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CapePCA(Transformer):
    """Principal components of data that stay at their sites: the paper's Algorithm 3.

    Data are used as they are: not centred, each sample shortened to the norm ``clip``.

    Parameters
    ----------
    n_components : int
        R.
    epsilon, delta : float
        The budget; epsilon is not given for ``mechanism="none"``.
    neighbour : {"subject", "sample"}
        What is protected: everything of one person, or a single sample (time point), as in the paper. Then
        the number of samples of each subject is public, and a whole person has ``privacy_.subject_epsilon``.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How the mean is made private.
    clip : float
        Largest norm of one sample.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    masking : {"uniform", "paper"}
        Kind of masks that hide a site's numbers.
    random_state : int, optional
        Unused, because nothing but the private noise is random; accepted for uniformity.
    on_bad : {"raise", "zero"}
        What to do about subjects that cannot be used (NaN, infinity, another number of features):
        say which, or let them contribute zero, as sites do in studies of the command line.
    insecure_noise_seed : int, optional
        Reproducible noise; the result is marked as not private.
    budget : PrivacyBudget, optional
        What this call is charged to, together with others. Without one epsilon stands for this call alone,
        and what several calls on the same people cost adds up (:mod:`capedjica.privacy.budget`). With
        ``neighbour="sample"`` it is charged for a whole person: the mu of one sample, times the samples of
        the longest scan.
    mask
        The old name of ``masking``.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Orthonormal rows, the leading component first, each with its largest entry positive.
    n_features_in_ : int
        D.
    feature_names_in_ : array of str
        The columns of the subjects, where they were data frames.
    privacy_ : PrivacyStatement
        The guarantee.
    """

    def __init__(
        self,
        n_components: int,
        epsilon: float | Mapping[str, float] | None = None,
        delta: float = 1e-5,
        neighbour: Neighbour = "subject",
        mechanism: MechanismName = "cape",
        clip: float = 1.0,
        n_colluding: int | str = "third",
        masking: MaskName = "uniform",
        random_state: int | None = None,
        on_bad: OnBad = "raise",
        insecure_noise_seed: int | None = None,
        budget: PrivacyBudget | None = None,
        mask: Any = DEPRECATED,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.neighbour, self.mechanism, self.clip = neighbour, mechanism, clip
        self.n_colluding, self.masking, self.mask = n_colluding, masking, mask
        self.random_state, self.on_bad = random_state, on_bad
        self.insecure_noise_seed, self.budget = insecure_noise_seed, budget

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Estimate the components.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is a list of subjects, a subject an array (samples, features).
        y : None
            Ignored.
        """
        validate.count("n_components", self.n_components)
        validate.positive("clip", self.clip)
        ProtectedUnit(self.neighbour)
        sites = read_sites(X, 0, self.on_bad)
        n_features = next(iter(sites.values()))[0].shape[1]
        if self.n_components > n_features:
            raise InputError(
                f"n_components must be at most the {n_features} features of X, got {self.n_components}"
            )
        analysis = PrincipalComponents(n_features, self.n_components, self.clip, self.neighbour)
        study = self._study(
            f"capePCA with {self.n_components} components",
            analysis,
            sites,
            self._terms(),
            subjects={
                name: len(subjects) if self.neighbour == "subject" else sum(map(len, subjects))
                for name, subjects in sites.items()
            },
            neighbour=self.neighbour,
            # How long the longest subject is, is public where samples are protected.
            units_per_subject=1
            if self.neighbour == "subject"
            else max(len(subject) for subjects in sites.values() for subject in subjects),
        )
        self.components_ = analysis.estimate(study).components
        self._know_features(n_features, feature_names(X))
        self.privacy_ = study.privacy
        return self

    def _transform_one(self, subject: Any) -> Any:
        return self._table(subject) @ self.components_.T

    def _centred(self, subject: Any) -> FloatArray:
        return self._table(subject)

    def plot_components(self, title: str = "Principal components") -> Figure:
        """Return a figure of the components, one number for each feature."""
        from capedjica.report.pictures.figures import profiles_figure

        self._check_fitted("components_")
        return profiles_figure(self.components_, title)
