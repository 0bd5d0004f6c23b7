"""What scikit-learn expects of an estimator, without the seconds that importing it takes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from capedjica.errors import InputError


class Estimator(ABC):
    """Parameters are those of ``__init__``, kept under their names and never changed."""

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the subjects of all sites."""

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Return what becomes of a subject."""

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn from the subjects of all sites, and return what becomes of each."""
        return self.fit(X).transform(X)

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
        nested = {name: value for name, value in params.items() if _has_params(value)}
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

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what to expect: X is a list of sites, not one table."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
            non_deterministic=True,
        )

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")


def _has_params(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, np.ndarray):
        return False
    return value is default or bool(value == default)


def _short(value: Any) -> str:
    """Return a parameter in few words; of an array or an image only what it is."""
    if isinstance(value, np.ndarray) or hasattr(value, "dataobj"):
        return f"<{type(value).__name__} of shape {value.shape}>"
    return repr(value)
