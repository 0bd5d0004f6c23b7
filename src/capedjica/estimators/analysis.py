"""``private_analysis``: any analysis, across sites in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from capedjica.algorithms.analysis import Analysis, Result, check_result
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.estimators.inputs import Sites, name_sites
from capedjica.mechanisms.contract import MaskName, MechanismName
from capedjica.privacy.budget import PrivacyBudget
from capedjica.privacy.statement import PrivacyStatement

ResultT = TypeVar("ResultT", bound=Result)


@dataclass(frozen=True, eq=False)
class PrivateResult(Generic[ResultT]):
    """Result of an analysis, and its cost.

    Attributes
    ----------
    result : Result
        What the analysis computed from the released means.
    privacy : PrivacyStatement
        The privacy guarantee, which holds if the analysis's claims about its queries hold.
    """

    result: ResultT
    privacy: PrivacyStatement


def private_analysis(
    analysis: Analysis[ResultT],
    X: Sites,
    epsilon: float | Mapping[str, float] | None = None,
    delta: float = 1e-5,
    mechanism: MechanismName = "cape",
    *,
    n_colluding: int | str = "third",
    masking: MaskName = "uniform",
    insecure_noise_seed: int | None = None,
    budget: PrivacyBudget | None = None,
) -> PrivateResult[ResultT]:
    """Run an analysis over the subjects of all sites.

    The complete protocol runs in this process, with the same messages that sites would exchange.

    Parameters
    ----------
    analysis : Analysis
        An object with the methods of :class:`capedjica.algorithms.analysis.Analysis`.
    X : list of sites, or dict from name to site
        A site is a sequence of subjects, in the form that ``analysis.site`` expects.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :func:`capedjica.private_mean`.

    Returns
    -------
    PrivateResult
        With attributes ``result`` and ``privacy``.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import private_analysis
    >>> from capedjica.algorithms.tables.mean import MeanOfRows
    >>> hospitals = {"north": np.ones((40, 3)), "south": np.ones((25, 3)), "west": np.ones((60, 3))}
    >>> found = private_analysis(MeanOfRows(3, clip=2.0), hospitals, epsilon=5.0)
    >>> found.result.value.shape
    (3,)
    """
    terms = in_process(
        epsilon=epsilon, delta=delta, mechanism=mechanism, masking=masking, n_colluding=n_colluding
    )
    study = EmbeddedStudy.of(
        type(analysis).__name__,
        analysis,
        name_sites(X),
        terms,
        insecure_noise_seed=insecure_noise_seed,
        budget=budget,
    )
    found = analysis.estimate(study)
    check_result(found, analysis)
    return PrivateResult(found, study.privacy)
