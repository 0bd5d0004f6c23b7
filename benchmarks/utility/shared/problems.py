"""Data with a truth to compare with, held so that many analyses of them are quick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.scan_length import TYPICAL_SCAN
from capedjica.algorithms.ica.subject_level import SUBSPACE, SubjectMethod, SubjectSite
from capedjica.data.simulated.synthetic import MapKind, SyntheticModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName

FloatArray = NDArray[np.float64]
Scan = NDArray[np.float32]
DELTA: Final = 1e-5
# Rows of the first stage are kept between analyses of the same data up to this many numbers at a site.
_KEPT_NUMBERS: Final = 2**25


@dataclass(frozen=True, eq=False)
class Problem:
    """Sites of subjects and the mixing matrix to be found.

    Parameters
    ----------
    features : dict from site to list of arrays (T_m, K)
        The scans in the public basis (the scans themselves without one), which a site would compute first.
    mixing : array (D, R)
        The truth, or what stands for it, of sources with unit variance.
    basis : array (K, D), optional
        The public basis.
    scan_length : int
        Time points of a typical scan, as a study would agree on before it sees any.
    """

    features: Mapping[str, Sequence[Scan]]
    mixing: FloatArray
    basis: FloatArray | None = None
    scan_length: int = TYPICAL_SCAN

    @property
    def n_components(self) -> int:
        """R."""
        return int(self.mixing.shape[1])

    @property
    def sizes(self) -> dict[str, int]:
        """Subjects of each site."""
        return {name: len(site) for name, site in self.features.items()}

    @property
    def scans(self) -> list[Scan]:
        """The scans of all sites."""
        return [scan for site in self.features.values() for scan in site]

    @cached_property
    def sites(self) -> dict[str, KeptSite]:
        """What the sites compute."""
        return self._sites(exact=False)

    @cached_property
    def exact_sites(self) -> dict[str, KeptSite]:
        """What the sites compute without noise."""
        return self._sites(exact=True)

    def _sites(self, exact: bool) -> dict[str, KeptSite]:
        return {name: KeptSite(scans, self.n_components, exact) for name, scans in self.features.items()}

    def pixels(self, unmixing: FloatArray) -> FloatArray:
        """Return an unmixing matrix (R, K) of the features as one (R, D) of the scans."""
        return unmixing if self.basis is None else unmixing @ self.basis

    def method(
        self,
        epsilon: float | None,
        mechanism: MechanismName = "cape",
        kind: type[SubjectMethod] = SubjectMethod,
    ) -> SubjectMethod:
        """Return the default method, or a kind of it, as the estimator would choose it for such a study."""
        terms = in_process(epsilon=epsilon, delta=DELTA, mechanism=mechanism)
        noise = terms.mean_noise(list(self.sizes.values()))
        return kind(len(self.mixing), self.n_components, self.scan_length, noise, basis=self.basis)

    def analyse(
        self,
        epsilon: float | None,
        mechanism: MechanismName = "cape",
        kind: type[SubjectMethod] = SubjectMethod,
        max_rotations: int | None = None,
    ) -> tuple[FloatArray, int]:
        """Run the method on the real protocol; return the (R, D) unmixing matrix and the iterations made."""
        method = replace(self.method(epsilon, mechanism, kind), max_rotations=max_rotations)
        study = EmbeddedStudy(
            "utility",
            self.sizes,
            self.sites if method.noise > 0 else self.exact_sites,
            method.stages(),
            in_process(epsilon=epsilon, delta=DELTA, mechanism=mechanism),
        )
        found = method.estimate(study)
        if epsilon is not None:
            assert study.privacy.epsilon <= epsilon * (1 + 1e-9)
        return found.estimate, found.n_iter


class KeptSite(SubjectSite):
    """A site that keeps the vectors of the first stage, which depend on nothing that was published."""

    def __init__(self, subjects: Sequence[Scan], n_components: int, exact: bool = False) -> None:
        super().__init__(subjects, n_components, exact=exact)
        self._scans = subjects
        self._rows: list[FloatArray] | None = None

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors."""
        size = self._scans[0].shape[1]
        if stage != SUBSPACE or len(self._scans) * size * (size + 1) // 2 > _KEPT_NUMBERS:
            return super().__call__(stage, published, state)
        if self._rows is None:
            self._rows = list(super().__call__(stage, published, state))
        return iter(self._rows)


@dataclass(frozen=True)
class Size:
    """What to simulate; the default is the paper's synthetic study."""

    n_subjects: int = 1024
    n_components: int = 20
    n_timepoints: int = 250
    image_side: int = 30
    noise: float = 0.0
    with_basis: bool = True
    n_sites: int = 4
    condition: float | None = None
    maps: MapKind = "compact"


def synthetic(seed: int, size: Size) -> Problem:
    """Simulate a study (:func:`capedjica.data.make_synthetic`), subject by subject."""
    model = SyntheticModel.draw(
        size.n_subjects,
        size.n_components,
        size.n_timepoints,
        size.image_side,
        seed,
        noise=size.noise,
        maps=size.maps,
    )
    if size.condition is not None:
        model = model.conditioned(size.condition)
    basis = low_pass((size.image_side, size.image_side)) if size.with_basis else None
    features = [_in_basis(scan, basis) for scan in model.subjects()]
    bounds = np.linspace(0, len(features), size.n_sites + 1).astype(int)
    sites = {
        f"site-{number}": features[bounds[number - 1] : bounds[number]]
        for number in range(1, size.n_sites + 1)
    }
    return Problem(sites, model.mixing, basis, size.n_timepoints)


def _in_basis(scan: Scan, basis: FloatArray | None) -> Scan:
    centred: Scan = (scan - scan.mean(axis=0, dtype=np.float64)).astype(np.float32)
    return centred if basis is None else centred @ basis.T.astype(np.float32)
