"""Report of a site on its individual participants, which must not leave the site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from capedjica.algorithms.ica.individual import standardise
from capedjica.report.downloads import Figure, png, table
from capedjica.report.page import render
from capedjica.report.pictures import charts, slices
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import counted

# Participants further than this from the site's median, in robust standard deviations, are unusual.
UNUSUAL: Final = 3.5
# Largest absolute value of standardised time courses in the colour scale.
_BRIGHTEST: Final = 3.0
_MAD: Final = 1.4826


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Power (F, R) of time courses by frequency (F,), and the unit of the frequencies."""

    frequencies: FloatArray
    power: FloatArray
    unit: str


@dataclass(frozen=True, eq=False)
class PersonResults:
    """Individual results of one participant, given the group's maps.

    Attributes
    ----------
    name : str
        Name of the participant's folder.
    courses : list of array (T_i, R)
        Time courses of each run.
    spectra : list of Spectrum
        Spectra of each run.
    connectivity : array (R, R)
        Fisher's z between time courses.
    fit : float
        Mean correlation of the participant's own maps with those of the group.
    left_out : int
        Number of censored volumes.
    files : dict
        Files next to the page, by description.
    """

    name: str
    courses: list[FloatArray]
    spectra: list[Spectrum]
    connectivity: FloatArray
    fit: float
    left_out: int
    files: Mapping[str, str]


@dataclass(frozen=True)
class Quality:
    """Quality measures of one participant, and the names of those that are unusual."""

    values: Mapping[str, float]
    unusual: tuple[str, ...]


# Quality measures, and whether high (+1) or low (-1) values are bad.
MEASURES: Final = {
    "fit to the group's maps": -1,
    "usual connectivity": -1,
    "largest jump": 1,
    "volumes censored": 1,
}


def qualities(people: Sequence[PersonResults]) -> list[Quality]:
    """Compute the quality measures of each participant relative to the others of the site.

    The measures are the mean correlation of the participant's maps with the group's, the correlation of
    their connectivity with the site's median, the largest step of a standardised time course, and the
    fraction of volumes that were censored.
    """
    upper = np.triu_indices(len(people[0].connectivity), 1)
    connections = np.array([person.connectivity[upper] for person in people])
    usual = np.median(connections, axis=0)
    measured = {
        "fit to the group's maps": [person.fit for person in people],
        "usual connectivity": [_correlation(own, usual) for own in connections],
        "largest jump": [_largest_jump(person) for person in people],
        "volumes censored": [
            person.left_out / (person.left_out + sum(map(len, person.courses))) for person in people
        ],
    }
    far = {name: _distances(np.array(values)) * MEASURES[name] for name, values in measured.items()}
    return [
        Quality(
            {name: values[index] for name, values in measured.items()},
            tuple(name for name in measured if far[name][index] > UNUSUAL),
        )
        for index in range(len(people))
    ]


def _correlation(first: FloatArray, second: FloatArray) -> float:
    """Return the correlation of two vectors; 0 if one is constant."""
    a, b = first - first.mean(), second - second.mean()
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 0.0


def _largest_jump(person: PersonResults) -> float:
    steps = [np.abs(np.diff(standardise(course), axis=0)) for course in person.courses]
    return float(max(step.max(initial=0.0) for step in steps))


def _distances(values: FloatArray) -> FloatArray:
    """Return distances from the median in units of 1.4826 times the median absolute deviation."""
    away = values - np.median(values)
    scale = _MAD * float(np.median(np.abs(away)))
    return away / (scale or float(np.abs(away).max()) or 1.0)


def local_page(
    title: str,
    site: str,
    people: Sequence[PersonResults],
    without: Sequence[str],
    warning: str = "",
    names: Sequence[str] = (),
) -> str:
    """Return the page of a site on its participants.

    Parameters
    ----------
    title, site : str
        The study, and the name of the site.
    people : sequence of PersonResults
        Results of the site's participants.
    without : sequence of str
        Participants without results because their scans are unusable.
    warning : str
        Warning about the maps, shown first; empty if they are reliable.
    names : sequence of str
        Names of the networks; empty if they have none.
    """
    found = qualities(people)
    shown = Connections.of(people, names)
    order = sorted(range(len(people)), key=lambda index: (-len(found[index].unusual), people[index].name))
    return render(
        "local.html.jinja",
        title=title,
        site=site,
        measures=list(MEASURES),
        unusual=UNUSUAL,
        people=[(people[index], found[index], _pictures(people[index], shown)) for index in order],
        without=without,
        warning=warning,
        numbers=table(
            "quality.csv",
            ["participant", *MEASURES, "unusual"],
            [
                [person.name, *quality.values.values(), "; ".join(quality.unusual)]
                for person, quality in zip(people, found, strict=True)
            ],
        ),
        connectivity=shown.figure(
            np.mean([person.connectivity for person in people], axis=0),
            f"Mean connectivity of {counted(len(people), 'participant')}",
            f"Mean of {counted(len(people), 'participant')}: Fisher's z between components; red is positive, "
            "blue is negative.",
        ),
        spectra=_mean_spectra(people),
    )


def _pictures(person: PersonResults, connections: Connections) -> list[Figure]:
    """Return figures of the time courses and spectra of each run, and of the connectivity."""
    figures = []
    for number, (courses, spectrum) in enumerate(zip(person.courses, person.spectra, strict=True), start=1):
        run = f", run {number}" if len(person.courses) > 1 else ""
        shown = np.clip(standardise(courses), -_BRIGHTEST, _BRIGHTEST)
        power = spectrum.power
        logarithm = np.log10(np.maximum(power, 1e-12 * max(float(power.max()), 1e-300)))
        figures.append(
            Figure(
                alt=f"Time courses of {person.name}{run}: {courses.shape[1]} components over {len(courses)} "
                "time points.",
                caption=f"Time courses{run}: components from top to bottom, time from left to right.",
                picture=png(slices.square(shown.T, limit=_BRIGHTEST)),
            )
        )
        figures.append(
            Figure(
                alt=f"Spectra of {person.name}{run}: power of {courses.shape[1]} components at "
                f"{len(spectrum.frequencies)} frequencies up to {spectrum.frequencies[-1]:.3g} "
                f"{spectrum.unit}.",
                caption=f"Spectra{run}: components from top to bottom, low frequencies on the left; red is "
                "more power than the component's average.",
                picture=png(slices.square((logarithm - logarithm.mean(axis=0)).T)),
            )
        )
    figures.append(connections.figure(person.connectivity, f"Connectivity of {person.name}", "Connectivity."))
    return figures


@dataclass(frozen=True)
class Connections:
    """Common colour scale and names for all connectivity matrices on one page.

    Attributes
    ----------
    names : sequence of str
        Names of the components.
    limit : float
        Absolute value shown in the strongest colour; larger values have the same colour.
    """

    names: Sequence[str]
    limit: float

    @classmethod
    def of(cls, people: Sequence[PersonResults], names: Sequence[str]) -> Connections:
        """Return the colour scale for the connectivity matrices of all participants.

        It extends to the largest value, rounded up to tenths, and at most to a z of 1 (a correlation of
        0.76), so that one participant with very high connectivity does not make the others look pale.
        """
        largest = max(float(np.abs(person.connectivity).max(initial=0.0)) for person in people)
        n_components = len(people[0].connectivity)
        numbers = [f"component {number}" for number in range(1, n_components + 1)]
        named = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
        return cls(named or numbers, min(1.0, max(0.1, math.ceil(10 * largest) / 10)))

    def figure(self, values: FloatArray, alt: str, caption: str) -> Figure:
        """Return a figure of one matrix (R, R), with component names and a colour bar."""
        upper = np.triu(np.abs(values), 1)
        first, second = (int(index) for index in np.unravel_index(upper.argmax(), upper.shape))
        beyond = " Larger values have the same colour." if np.abs(values).max() > self.limit else ""
        return Figure(
            alt=f"{alt} as a matrix of Fisher's z of {len(values)} components, from {values.min():.2f} to "
            f"{values.max():.2f}; it is strongest between {self.names[first]} and {self.names[second]}.",
            caption=f"{caption} The colour scale is from {-self.limit:g} to {self.limit:g}.{beyond}",
            drawing=charts.matrix(values, self.names, "Fisher's z", self.limit),
            numbers=table("connectivity.csv", list(self.names), values.tolist()),
        )


def _mean_spectra(people: Sequence[PersonResults]) -> list[Figure]:
    """Return the spectrum of each component over the runs with the most common frequency grid."""
    by_grid: dict[tuple[float, ...], list[Spectrum]] = {}
    for spectrum in (one for person in people for one in person.spectra):
        by_grid.setdefault(tuple(spectrum.frequencies.round(9)), []).append(spectrum)
    shared = max(by_grid.values(), key=len)
    frequencies, unit = shared[0].frequencies[1:], shared[0].unit
    low, middle, high = np.quantile([one.power[1:] for one in shared], [0.25, 0.5, 0.75], axis=0)
    return [
        _spectrum(
            number, frequencies, (low[:, number], middle[:, number], high[:, number]), unit, len(shared)
        )
        for number in range(middle.shape[1])
    ]


def _spectrum(
    index: int,
    frequencies: FloatArray,
    quartiles: tuple[FloatArray, FloatArray, FloatArray],
    unit: str,
    n: int,
) -> Figure:
    tiny = np.finfo(float).tiny
    low, middle, high = (np.maximum(curve, tiny) for curve in quartiles)
    peak = frequencies[middle.argmax()]
    columns = [f"frequency ({unit})", "lower quartile", "median", "upper quartile"]
    return Figure(
        alt=f"Spectrum of component {index + 1} over {n} runs; power is highest at {peak:.3g} {unit}.",
        caption=f"Component {index + 1}",
        drawing=charts.spread(frequencies, low, middle, high, (unit, "power")),
        numbers=table(
            f"spectrum-{index + 1:02d}.csv",
            columns,
            np.column_stack([frequencies, low, middle, high]).tolist(),
        ),
    )
