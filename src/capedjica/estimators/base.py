"""Base classes of the estimators: scikit-learn parameters, a privacy budget, and an in-process study."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Analysis, Result
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError
from capedjica.mechanisms.contract import MECHANISMS, MaskName, MechanismName
from capedjica.mechanisms.terms import Terms
from capedjica.privacy import validate
from capedjica.privacy.budget import AbsentBudget, PrivacyBudget
from capedjica.privacy.statement import PrivacyStatement
from capedjica.tools.arrays import FloatArray

# Default value of a deprecated parameter name, so that ``clone``, ``get_params`` and ``set_params`` treat it
# like any other parameter. ``fit`` interprets it.
DEPRECATED: Final = "deprecated"
Value = TypeVar("Value")


class Estimator:
    """Base class: parameters are those of ``__init__``, stored under their names and never modified."""

    # Not scikit-learn's BaseEstimator: importing it takes two thirds as long as importing this whole package.

    epsilon: float | Mapping[str, float] | None
    delta: float
    mechanism: MechanismName
    n_colluding: int | str
    masking: MaskName
    mask: Any
    insecure_noise_seed: int | None
    budget: PrivacyBudget | None
    privacy_: PrivacyStatement

    def _terms(self) -> Terms:
        """Return the terms of the study: its budget and the adversary that it protects against."""
        validate.choice("mechanism", self.mechanism, MECHANISMS)
        return in_process(
            epsilon=self.epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            masking=self._masking(),
            n_colluding=self.n_colluding,
        )

    def _masking(self) -> MaskName:
        return renamed("mask", self.mask, "masking", self.masking, "uniform")

    def _study(
        self, title: str, analysis: Analysis[Result], sites: Mapping[str, Any], terms: Terms, **more: Any
    ) -> EmbeddedStudy:
        """Return a study of the analysis, charged to the budget; ``more`` is passed to `EmbeddedStudy`."""
        seed, budget = self.insecure_noise_seed, self.budget
        return EmbeddedStudy.of(
            title, analysis, sites, terms, insecure_noise_seed=seed, budget=budget, **more
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the budget: two processes could otherwise spend it twice."""
        state = dict(vars(self))
        return state | ({} if state.get("budget") is None else {"budget": AbsentBudget()})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that shares the budget, as ``clone`` does."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    def __copy__(self) -> Self:
        """Return a copy that shares everything."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        signature = inspect.signature(cls.__init__).parameters
        return {name: parameter.default for name, parameter in signature.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Also return the parameters of nested objects, such as a masker.

        Returns
        -------
        dict
            Parameter names and their values.
        """
        params = {name: getattr(self, name) for name in self._defaults()}
        if not deep:
            return params
        nested = {
            name: value
            for name, value in params.items()
            if hasattr(value, "get_params") and not isinstance(value, type)
        }
        return params | {
            f"{name}__{inner}": value
            for name, owner in nested.items()
            for inner, value in owner.get_params().items()
        }

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``masker__smoothing_fwhm`` sets a parameter of the masker. Return self."""
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in self._defaults():
                raise InputError(f"{outer!r} is not a parameter of {type(self).__name__}; see get_params()")
            if inner:
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def __repr__(self) -> str:
        defaults = self._defaults()
        params = ((name, getattr(self, name)) for name in defaults)
        changed = (f"{name}={_short(value)}" for name, value in params if not _same(value, defaults[name]))
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        """Return scikit-learn's HTML representation, which shows the parameters and the fitted state."""
        from sklearn.utils import estimator_html_repr

        shown: str = estimator_html_repr(self)
        return shown

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn tags: X is a list of sites, not one table."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
            non_deterministic=True,
        )

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"This {type(self).__name__} instance is not fitted yet; call fit first")


class Transformer(Estimator):
    """Base class of estimators of components that transform every subject.

    Attributes
    ----------
    n_features_in_ : int
        Number of features D of the subjects seen during ``fit``.
    feature_names_in_ : array of str
        Column names of the subjects; defined only if all of them were data frames.
    """

    components_: FloatArray
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the estimator to the subjects of all sites."""
        raise NotImplementedError

    def transform(self, X: Any) -> Any:
        """Transform one subject, or each subject in a list or dict."""
        self._check_fitted("components_")
        return each(self._transform_one, X)

    def _transform_one(self, subject: Any) -> Any:
        raise NotImplementedError

    def inverse_transform(self, X: Any) -> Any:
        """Reconstruct scans (time, features) from time courses (time, components).

        The reconstruction is the product of time courses and maps. It is not the original scan: variance that
        no component explains is lost, and so is the mean over time where ``transform`` removes it.
        """
        self._check_fitted("components_")
        return each(self._rebuild, X)

    def _rebuild(self, courses: Any) -> FloatArray:
        values, size = np.asarray(courses, dtype=np.float64), len(self.components_)
        if values.ndim != 2 or values.shape[1] != size:
            raise InputError(f"X must contain time courses (time, {size}), got shape {values.shape}")
        rebuilt: FloatArray = values @ self.components_
        return rebuilt

    def score(self, X: Any, y: Any = None) -> float:
        r"""Return the fraction of variance that the components explain, at most 1.

        .. math:: 1 - \frac{\sum_m \lVert X_m - \hat X_m \rVert^2}{\sum_m \lVert X_m \rVert^2}

        over all subjects m, where :math:`\hat X_m` is ``inverse_transform(transform(X_m))``. Use held-out
        subjects: ``cross_val_score`` holds out whole sites. The score is a statistic of the subjects in ``X``
        that is computed locally and charged to no budget: it is not private.

        Parameters
        ----------
        X : subject, or list or dict of subjects or of sites
            As for ``transform``.
        y : None
            Ignored.

        Returns
        -------
        float
            Fraction of explained variance.
        """
        self._check_fitted("components_")
        total = missed = 0.0
        for subject in leaves(X):
            values = self._centred(subject)
            total += float(np.sum(values**2))
            missed += float(np.sum((values - self._rebuild(self._transform_one(subject))) ** 2))
        if not total:
            raise InputError("X must contain subjects with varying values: there is no variance to explain")
        return 1 - missed / total

    def _centred(self, subject: Any) -> FloatArray:
        """Return a subject (time, features), centred as the components model it."""
        raise NotImplementedError

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns of ``transform``: the class name and a number, as in scikit-learn.

        Parameters
        ----------
        input_features : None
            Ignored: every component depends on all features.
        """
        self._check_fitted("components_")
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{number}" for number in range(len(self.components_))], dtype=object)

    def _know_features(self, n_features: int, names: Sequence[str] | None) -> None:
        """Store the number of features, and their names if there are any, seen during ``fit``."""
        self.n_features_in_ = n_features
        vars(self).pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _table(self, subject: Any) -> FloatArray:
        """Return a subject as a numeric array (time, features) with the features seen during ``fit``."""
        known, size = getattr(self, "feature_names_in_", None), self.components_.shape[1]
        if known is not None and hasattr(subject, "columns") and list(subject.columns) != list(known):
            raise InputError(
                "the columns of a subject must match those seen during fit, in the same order: expected "
                f"{', '.join(known[:3])}..., got {', '.join(map(str, subject.columns[:3]))}..."
            )
        try:
            values = np.asarray(subject, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"a subject must be a numeric array (time, {size}), got {type(subject).__name__}"
            ) from None
        if values.ndim != 2 or values.shape[1] != size:
            raise InputError(f"a subject must have shape (time, {size}), got {values.shape}")
        return values

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit the estimator to the subjects of all sites, and transform each of them."""
        return self.fit(X).transform(X)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn tags of a transformer."""
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.transformer_tags = "transformer", TransformerTags()
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(Estimator):
    """Base class of estimators on tables: privacy budget and adversary.

    Parameters
    ----------
    epsilon : float or dict from site to float, optional
        Total privacy budget; required unless ``mechanism="none"``.
    delta : float, default=1e-5
        Delta of the total guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}, default="cape"
        Mechanism that makes a mean private.
    n_colluding : int or "third", default="third"
        Largest number of sites that may collude with the aggregator.
    masking : {"uniform", "paper"}, default="uniform"
        Kind of masks that hide the sums of a site.
    insecure_noise_seed : int, optional
        Seed for reproducible noise; the result is then marked as not private.
    budget : PrivacyBudget, optional
        Budget shared with other calls, to which this call is charged. Without one, epsilon covers this call
        alone, and the costs of several calls on the same subjects add up (:mod:`capedjica.privacy.budget`).
    mask
        Deprecated name of ``masking``.

    Attributes
    ----------
    privacy_ : PrivacyStatement
        The privacy guarantee.
    """

    epsilon: float | Mapping[str, float] | None = None
    delta: float = 1e-5
    mechanism: MechanismName = "cape"
    n_colluding: int | str = "third"
    masking: MaskName = "uniform"
    insecure_noise_seed: int | None = None
    budget: PrivacyBudget | None = None
    mask: Any = DEPRECATED
    privacy_: PrivacyStatement = field(init=False)


def each(make: Callable[[Any], Any], X: Any) -> Any:
    """Apply a function to one subject, or to each subject in nested lists or dicts."""
    if isinstance(X, Mapping):
        return {name: each(make, site) for name, site in X.items()}
    return [each(make, one) for one in X] if isinstance(X, list | tuple) else make(X)


def leaves(X: Any) -> Iterator[Any]:
    """Yield the subjects in nested lists and dicts, or the single subject given."""
    if isinstance(X, Mapping | list | tuple):
        for one in X.values() if isinstance(X, Mapping) else X:
            yield from leaves(one)
    else:
        yield X


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, np.ndarray):
        return False
    return value is default or bool(value == default)


def _short(value: Any) -> str:
    """Return a short representation of a parameter; arrays and images are shown by type and shape."""
    if isinstance(value, np.ndarray) or hasattr(value, "dataobj"):
        return f"<{type(value).__name__} of shape {value.shape}>"
    return repr(value)


# Deprecated parameter names, accepted with a warning, as in scikit-learn.


def is_given(value: Any) -> bool:
    """Return whether a parameter was given by its deprecated name."""
    return not (isinstance(value, str) and value == DEPRECATED)


def renamed(old: str, value: Any, new: str, given: Value, default: Value) -> Value:
    """Return a parameter given by its deprecated name or by its current name, but not by both."""
    if not is_given(value):
        return given
    if not (given is default or (isinstance(given, str) and given == default)):
        raise InputError(f"{old} is the deprecated name of {new}: give only {new}")
    warn_of(old, f"{new}=...")
    result: Value = value
    return result


def warn_of(old: str, instead: str) -> None:
    """Warn that a parameter name is deprecated, and state its replacement."""
    warnings.warn(f"{old}= is deprecated and will be removed: use {instead}", FutureWarning, stacklevel=2)
