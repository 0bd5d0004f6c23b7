"""Report of a fitted :class:`~capedjica.CapeDJICA`, computed from its published results."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from capedjica.algorithms.analysis import ResultTable
from capedjica.algorithms.ica.maps.denoising import denoised_words, prior_words
from capedjica.algorithms.ica.maps.template_shift import movement_table
from capedjica.report.data_location import IN_ONE_PROCESS, who
from capedjica.report.group import Findings, group_page
from capedjica.report.maps import MapSet
from capedjica.report.page import HtmlReport
from capedjica.report.pictures.brain import find_peaks
from capedjica.report.pictures.figures import maps_figure, profiles_figure, slices_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capedjica.estimators.djica import CapeDJICA, Record

_LIBRARIES: Final = ("capedjica", "numpy", "scipy", "numba", "cryptography", "nibabel", "nilearn")


def estimator_report(estimator: CapeDJICA, record: Record, title: str | None) -> HtmlReport:
    """Return the report of a fit."""
    contract = record.contract
    maps = _maps(estimator)
    what = "Networks" if maps.reliability.networks else "Maps"
    usual = f"{what} of {who(contract.participants)}"
    words, source = estimator.template_words
    findings = Findings(
        title=title or usual,
        method=estimator.method,
        version=version("capedjica"),
        maps=maps,
        tables=_tables(estimator),
        denoised="" if estimator.components_denoised_ is None else denoised_words(source),
        template=words,
        template_source=source,
        contract=contract,
        privacy=estimator.privacy_,
        n_iter=estimator.n_iter_,
        where=IN_ONE_PROCESS,
        released=record.released,
        origin={"Python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
    )
    return HtmlReport(group_page(findings))


def _tables(estimator: CapeDJICA) -> list[ResultTable]:
    number = estimator.component_number_
    moved = [movement_table(estimator.movements_)] if estimator.movements_ else []
    return moved + ([number.table()] if number is not None and number.telling else [])


def components_figure(estimator: CapeDJICA, title: str | None) -> Figure:
    """Return the maps of a fit as a figure."""
    maps = _maps(estimator)
    shown = "\n".join(part for part in (maps.reliability.banner, title or maps.reliability.headline) if part)
    if maps.image is not None:
        return slices_figure(maps.image, shown, maps.reliability, maps.names, maps.approximate)
    if maps.image_shape is not None:
        return maps_figure(
            {"": maps.values.reshape(-1, *maps.image_shape)}, shown, maps.reliability, maps.names
        )
    return profiles_figure(maps.values, shown, maps.reliability, maps.names)


def _maps(estimator: CapeDJICA) -> MapSet:
    image = getattr(estimator, "components_img_", None)
    labels = estimator.labels_
    return MapSet(
        estimator.components_,
        estimator.stability_,
        image,
        estimator.image_shape,
        labels.peaks if labels is not None else [] if image is None else find_peaks(image),
        estimator.names_,
        estimator.mechanism != "none",
        labels,
        estimator.template is not None,
        _denoised(estimator),
        prior_words(estimator.template_words[1]),
        estimator.approximate_regions,
    )


def _denoised(estimator: CapeDJICA) -> MapSet | None:
    values = estimator.components_denoised_
    return None if values is None else MapSet(values, image=estimator.image_of(values))
