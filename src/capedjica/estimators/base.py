"""What all estimators have in common: scikit-learn's parameters, a budget, and a study in this process."""

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

# The default of a parameter's old name, so that ``clone``, ``get_params`` and ``set_params`` treat it like
# any other; what it says is looked at in ``fit``.
DEPRECATED: Final = "deprecated"
Value = TypeVar("Value")


class Estimator:
    """Parameters are those of ``__init__``, kept under their names and never changed."""

    # Not scikit-learn's BaseEstimator: to import that takes two thirds as long as all of this package.

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
        """Return what the study may cost, and against whom it protects."""
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
        """Return a study of the analysis, charged to the budget; ``more`` as for an `EmbeddedStudy`."""
        seed, budget = self.insecure_noise_seed, self.budget
        return EmbeddedStudy.of(
            title, analysis, sites, terms, insecure_noise_seed=seed, budget=budget, **more
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the budget, which two processes would spend twice."""
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
        deep : bool
            Return those of a parameter that has parameters of its own too, a masker for example.
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
        """Change parameters by name, ``masker__smoothing_fwhm`` being one of the masker; return self."""
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in self._defaults():
                raise InputError(f"{outer!r} is not a parameter of {type(self).__name__}")
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
        """Show parameters and whether it is fitted in a notebook, as scikit-learn's estimators do."""
        from sklearn.utils import estimator_html_repr

        shown: str = estimator_html_repr(self)
        return shown

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what to expect: X is a list of sites, not one table."""
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

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")


class Transformer(Estimator):
    """An estimator of components, whose result makes something of every subject.

    Attributes
    ----------
    n_features_in_ : int
        D, of the subjects of ``fit``.
    feature_names_in_ : array of str
        The columns of the subjects, where all of them were data frames.
    """

    components_: FloatArray
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the subjects of all sites."""
        raise NotImplementedError

    def transform(self, X: Any) -> Any:
        """Return what becomes of one subject, or of each in a list or dict."""
        self._check_fitted("components_")
        return each(self._transform_one, X)

    def _transform_one(self, subject: Any) -> Any:
        raise NotImplementedError

    def inverse_transform(self, X: Any) -> Any:
        """Return the scan (time, features) that time courses (time, components) stand for, or of each.

        Courses times maps: what ``transform`` keeps of a scan. It is not the scan itself: what no component
        explains is gone, and so is the mean over time where ``transform`` takes it off.
        """
        self._check_fitted("components_")
        return each(self._rebuild, X)

    def _rebuild(self, courses: Any) -> FloatArray:
        values, size = np.asarray(courses, dtype=np.float64), len(self.components_)
        if values.ndim != 2 or values.shape[1] != size:
            raise InputError(f"X must hold time courses (time, {size}), got shape {values.shape}")
        rebuilt: FloatArray = values @ self.components_
        return rebuilt

    def score(self, X: Any, y: Any = None) -> float:
        r"""Return how much of the variance of subjects the components explain, at most 1.

        .. math:: 1 - \frac{\sum_m \lVert X_m - \hat X_m \rVert^2}{\sum_m \lVert X_m \rVert^2}

        over all subjects m, with :math:`\hat X_m` what ``inverse_transform`` makes of ``transform``. Give it
        people who took no part in ``fit``: ``cross_val_score`` leaves out whole sites. It is a statistic of
        the people in ``X``, computed here and paid for by no budget: it is not private.

        Parameters
        ----------
        X : subject, or list or dict of subjects or of sites
            As for ``transform``.
        y : None
            Ignored.
        """
        self._check_fitted("components_")
        total = missed = 0.0
        for subject in leaves(X):
            values = self._centred(subject)
            total += float(np.sum(values**2))
            missed += float(np.sum((values - self._rebuild(self._transform_one(subject))) ** 2))
        if not total:
            raise InputError("X must hold subjects whose values vary: there is no variance to explain")
        return 1 - missed / total

    def _centred(self, subject: Any) -> FloatArray:
        """Return a subject (time, features) as the components are to explain it."""
        raise NotImplementedError

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return what the columns of ``transform`` are called: the class and a number, as in scikit-learn.

        Parameters
        ----------
        input_features : None
            Ignored: components are made of all features.
        """
        self._check_fitted("components_")
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{number}" for number in range(len(self.components_))], dtype=object)

    def _know_features(self, n_features: int, names: Sequence[str] | None) -> None:
        """Keep of how many features, and of which names, the subjects of ``fit`` were."""
        self.n_features_in_ = n_features
        vars(self).pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _table(self, subject: Any) -> FloatArray:
        """Return a subject as numbers (time, features), of the features that the components have."""
        known, size = getattr(self, "feature_names_in_", None), self.components_.shape[1]
        if known is not None and hasattr(subject, "columns") and list(subject.columns) != list(known):
            raise InputError(
                "the columns of a subject must be those of fit, in their order: "
                f"{', '.join(known[:3])}...; got {', '.join(map(str, subject.columns[:3]))}..."
            )
        try:
            values = np.asarray(subject, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"a subject must be numbers (time, {size}), got {type(subject).__name__}"
            ) from None
        if values.ndim != 2 or values.shape[1] != size:
            raise InputError(f"a subject must be (time, {size}), got shape {values.shape}")
        return values

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn from the subjects of all sites, and return what becomes of each."""
        return self.fit(X).transform(X)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that there is ``transform``."""
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.transformer_tags = "transformer", TransformerTags()
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(Estimator):
    """The budget, and against whom it protects.

    Parameters
    ----------
    epsilon : float or dict from site to float, optional
        Total budget; required unless ``mechanism="none"``.
    delta : float
        Of the total guarantee.
    mechanism : {"cape", "conventional", "local", "pooled", "none"}
        How a mean is made private.
    n_colluding : int or "third"
        Sites that may side with the aggregator.
    masking : {"uniform", "paper"}
        Kind of masks that hide a site's numbers.
    insecure_noise_seed : int, optional
        Reproducible noise; the result is marked as not private.
    budget : PrivacyBudget, optional
        What this call is charged to, together with others. Without one epsilon stands for this call alone,
        and what several calls on the same people cost adds up (:mod:`capedjica.privacy.budget`).
    mask
        The old name of ``masking``.

    Attributes
    ----------
    privacy_ : PrivacyStatement
        The guarantee.
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
    """Return what is made of one subject, or of each in a list or dict."""
    if isinstance(X, Mapping):
        return {name: each(make, site) for name, site in X.items()}
    return [each(make, one) for one in X] if isinstance(X, list | tuple) else make(X)


def leaves(X: Any) -> Iterator[Any]:
    """Yield the subjects of lists and dicts of them, or the one that is given."""
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
    """Return a parameter in few words; of an array or an image only what it is."""
    if isinstance(value, np.ndarray) or hasattr(value, "dataobj"):
        return f"<{type(value).__name__} of shape {value.shape}>"
    return repr(value)


# Parameters by the names they had before, accepted with a warning, as scikit-learn does it.


def is_given(value: Any) -> bool:
    """Tell whether a parameter was given by its old name."""
    return not (isinstance(value, str) and value == DEPRECATED)


def renamed(old: str, value: Any, new: str, given: Value, default: Value) -> Value:
    """Return a parameter that may be given by its old name or by its new one, but not by both."""
    if not is_given(value):
        return given
    if not (given is default or (isinstance(given, str) and given == default)):
        raise InputError(f"{old} is the old name of {new}: give {new} alone")
    warn_of(old, f"{new}=...")
    result: Value = value
    return result


def warn_of(old: str, instead: str) -> None:
    """Say what to write instead."""
    warnings.warn(f"{old}= is deprecated and will be removed: write {instead}", FutureWarning, stacklevel=2)
