"""Methods of joint ICA that are found by their names when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.template import Template
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray


def guided_method(
    template: Template, length: int, noise: float, max_iter: int | None, basis: FloatArray | None
) -> Analysis[Any]:
    """Return the method that begins from a template."""
    method: Analysis[Any] = _found("guided", "GuidedMethod")(template, length, noise, max_iter, basis)
    return method


def spatial_method(
    size: int, n_components: int, length: int, noise: float, basis: FloatArray | None
) -> Analysis[Any]:
    """Return the method that looks for independent maps."""
    method: Analysis[Any] = _found("spatial", "SpatialMethod")(size, n_components, length, noise, basis)
    return method


def _found(name: str, what: str) -> Any:
    module = f"capedjica.algorithms.ica.{name}"
    try:
        return getattr(import_module(module), what)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InputError(f"method {name!r} is not part of this version of capedjica") from None
