"""``CapePCA``: differentially private principal component analysis across sites."""

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
    """Private PCA of data that stay at their sites (Algorithm 3 of the paper).

    The data are not centred; each sample is clipped to the norm ``clip``.

    Parameters
    ----------
    n_components : int
        Number of components R.
    epsilon, delta : float
        Privacy budget; epsilon is not used with ``mechanism="none"``.
    neighbour : {"subject", "sample"}, default="subject"
        Unit of privacy: all data of one subject, or a single sample (time point), as in the paper. With
        "sample", the number of samples of each subject is public, and the guarantee for a whole subject is
        ``privacy_.subject_epsilon``.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}, default="cape"
        Mechanism that makes the mean private.
    clip : float, default=1.0
        Largest norm of a sample.
    n_colluding : int or "third", default="third"
        Largest number of sites that may collude with the aggregator.
    masking : {"uniform", "paper"}, default="uniform"
        Kind of masks that hide the sums of a site.
    random_state : int, optional
        Not used, because only the privacy noise is random; present for API consistency.
    on_bad : {"raise", "zero"}, default="raise"
        Handling of unusable subjects (NaN, infinity, a different number of features): "raise" an error that
        names the subject, or let it contribute zero, as sites do in command-line studies.
    insecure_noise_seed : int, optional
        Seed for reproducible noise; the result is then marked as not private.
    budget : PrivacyBudget, optional
        Budget shared with other calls, to which this call is charged. Without one, epsilon covers this call
        alone, and the costs of several calls on the same subjects add up (:mod:`capedjica.privacy.budget`).
        With ``neighbour="sample"`` the charge is that of a whole subject: the mu of one sample, times the
        number of samples of the longest scan.
    mask
        Deprecated name of ``masking``.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Orthonormal rows, ordered from the leading component, each with its largest entry positive.
    n_features_in_ : int
        Number of features D.
    feature_names_in_ : array of str
        Column names of the subjects; defined only if they were data frames.
    privacy_ : PrivacyStatement
        The privacy guarantee.
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
            A site is a list of subjects; a subject is an array (samples, features).
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
                f"n_components must be at most {n_features}, the number of features of X; "
                f"got {self.n_components}"
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
            # With sample-level privacy, the length of the longest subject is public.
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
        """Plot the components, one value for each feature."""
        from capedjica.report.pictures.figures import profiles_figure

        self._check_fitted("components_")
        return profiles_figure(self.components_, title)
