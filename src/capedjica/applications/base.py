"""What the estimators of this package have in common: a budget, and a study in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from capedjica.engines.embedded import EmbeddedStudy
from capedjica.mechanisms.contract import MaskName, MechanismName, Stage
from capedjica.privacy.budget import PrivacyBudget
from capedjica.privacy.statement import PrivacyStatement
from capedjica.tools.arrays import FloatArray

# A person's vectors at a public state.
Vectors = Callable[[bytes], Iterable[FloatArray]]


@dataclass(kw_only=True, eq=False)
class PrivateEstimator:
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
    mask : {"uniform", "paper"}
        Kind of masks.
    insecure_noise_seed : int, optional
        Reproducible noise; the result is marked as not private.
    budget : PrivacyBudget, optional
        What this call is charged to, together with others. Without one epsilon stands for this call alone,
        and what several calls on the same people cost adds up (:mod:`capedjica.privacy.budget`).

    Attributes
    ----------
    privacy_ : PrivacyStatement
        The guarantee.
    """

    epsilon: float | Mapping[str, float] | None = None
    delta: float = 1e-5
    mechanism: MechanismName = "cape"
    n_colluding: int | str = "third"
    mask: MaskName = "uniform"
    insecure_noise_seed: int | None = None
    budget: PrivacyBudget | None = None
    privacy_: PrivacyStatement = field(init=False, repr=False)

    def _study(
        self, title: str, sizes: Mapping[str, int], vectors: Mapping[str, Vectors], stage: Stage
    ) -> EmbeddedStudy:
        """Return a study of one stage in which nothing is published."""
        return EmbeddedStudy(
            title,
            sizes,
            {name: partial(_at_state, vectors[name]) for name in sizes},
            [stage],
            epsilon=self.epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            masking=self.mask,
            n_colluding=self.n_colluding,
            insecure_noise_seed=self.insecure_noise_seed,
            budget=self.budget,
        )


def _at_state(vectors: Vectors, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
    return vectors(state)
