"""Independent ways to the same numbers: arbitrary precision, joint covariances, brute force."""

from __future__ import annotations

from itertools import combinations

import mpmath
import numpy as np
from scipy.optimize import linprog


def mp_delta(mu, epsilon):
    """delta(epsilon) of N(0,1) against N(mu,1), from its definition, in arbitrary precision."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a, b = (epsilon / mu - mu / 2), (epsilon / mu + mu / 2)
        return (mpmath.erfc(a / mpmath.sqrt(2)) - mpmath.exp(epsilon) * mpmath.erfc(b / mpmath.sqrt(2))) / 2


def joint_mu(mask_var, local_var, weights, honest, site, sensitivity):
    """mu from the inverse of the covariance of everything the adversary sees.

    The view: all S messages, the published T, the colluders' masks and their local noise. Only what is
    random is inverted: the colluders' messages are sums of known quantities, so they are left out.
    """
    n = len(weights)
    colluding = [i for i in range(n) if i not in honest]
    # independent sources: e_0..e_{n-1}, g_0..g_{n-1}
    rows = []
    for i in honest:
        row = np.zeros(2 * n)
        row[i] = row[n + i] = 1
        rows.append(row)
    total = np.zeros(2 * n)
    total[:n] = weights
    rows.append(total)
    for i in colluding:
        mask, noise = np.zeros(2 * n), np.zeros(2 * n)
        mask[i] = 1
        noise[n + i] = 1
        rows += [mask, noise]
    view = np.array(rows)
    covariance = view @ np.diag(np.concatenate([mask_var, local_var])) @ view.T
    shift = np.zeros(len(rows))
    shift[list(honest).index(site)] = sensitivity
    scale = 1 / np.sqrt(np.diag(covariance))
    whitened = np.linalg.solve(covariance * np.outer(scale, scale), shift * scale)
    return float(np.sqrt(shift * scale @ whitened))


def brute_force_mu(mask_var, local_var, weights, n_colluding, site, sensitivity):
    others = [i for i in range(len(weights)) if i != site]
    return max(
        joint_mu(
            mask_var, local_var, weights, [i for i in range(len(weights)) if i not in gone], site, sensitivity
        )
        for gone in combinations(others, n_colluding)
    )


def linear_program(need, n_colluding):
    """Least total noise: minimise sum x, sum over every honest set of S_H sites >= its largest need."""
    n = len(need)
    rows, bounds = [], []
    for honest in combinations(range(n), n - n_colluding):
        row = np.zeros(n)
        row[list(honest)] = -1
        rows.append(row)
        bounds.append(-max(need[i] for i in honest))
    return linprog(np.ones(n), A_ub=np.array(rows), b_ub=np.array(bounds), bounds=(0, None)).fun
