"""How noisy a mean is, by formula: for choices that must be made before there is a contract."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capedjica.mechanisms.contract import MaskName, MechanismName


def mean_noise(
    mu: float, subjects: Sequence[int], n_colluding: int, mechanism: MechanismName, mask: MaskName
) -> float:
    r"""Return the noise on each number of a mean of vectors of norm at most 1, made with all of ``mu``.

    Replacing one of M subjects moves the mean by 2/M, so a trusted curator adds noise of 2/(M mu); its
    variance is multiplied by S/S_H for cape with uniform masks, S/(S+1) (1 + S/S_H) with the paper's, S for
    conventional noise, and (M / max M_s)^2 where the largest site works alone. A release plans its noise
    exactly (:func:`capedjica.mechanisms.release.plan_release`).
    """
    total, sites = sum(subjects), len(subjects)
    honest = max(1, sites - n_colluding)
    factor = {
        "none": 0.0,
        "pooled": 1.0,
        "cape": sites / honest if mask == "uniform" else sites / (sites + 1) * (1 + sites / honest),
        "conventional": float(sites),
        "local": (total / max(subjects)) ** 2,
    }[mechanism]
    return 2 * math.sqrt(factor) / (total * mu)
