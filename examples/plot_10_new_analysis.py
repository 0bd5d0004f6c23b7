"""
Writing a new analysis
======================

How many participants have each connection? An analysis of your own: its query, its sensitivity, and what is
computed from the private mean. It then runs like any other, with the same protocol and the same accounting.
"""

# %%
# The query and its sensitivity
# -----------------------------
# A participant answers 1 for each pair of regions whose time courses correlate above a public limit, else 0.
# For P pairs the vector has a norm of at most C = sqrt(P), and two such vectors are at most sqrt(P) = 1·C
# apart: ``spread=1``. This is half of what holds for any vectors of norm C, so half the noise. ``clip`` is
# enforced at the site; ``spread`` is the author's claim: a value that is too small breaks the guarantee.

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np

from capedjica import check_sensitivity, private_analysis
from capedjica.extending import AnalysisTable, Query, Result, ResultTable, Stage


@dataclass(frozen=True, eq=False)
class Prevalence(Result):
    """Share of the participants with each connection, and the standard deviation of its noise."""

    shares: np.ndarray
    noise: float

    def tables(self):
        """Return the table that a run writes, and its report shows."""
        rows = [(f"pair {number}", share) for number, share in enumerate(self.shares, start=1)]
        return [
            ResultTable("prevalence", "Share of participants with each connection.", ["pair", "share"], rows)
        ]


@dataclass(frozen=True)
class ConnectionPrevalence:
    """The analysis: all its public parameters."""

    n_regions: int
    limit: float

    def stages(self):
        """Return the only query."""
        n_pairs = self.n_regions * (self.n_regions - 1) // 2
        return (Stage(Query("connections", n_pairs, math.sqrt(n_pairs), spread=1.0)),)

    def site(self, subjects):
        """Return the function that yields the vectors of a site's subjects."""
        return partial(_connections, subjects, self.limit)

    def estimate(self, means, progress=None):
        """Return the result, computed from the private mean alone."""
        return Prevalence(means.mean(0), means.released[0].noise)


def _connections(subjects, limit, stage, published, state):
    # A map and not a loop: a scan that cannot be read then costs the contribution of its subject alone.
    return map(partial(_row, limit), subjects)


def _row(limit, scan):
    """Return the vector of one subject, as a row."""
    correlations = np.corrcoef(np.asarray(scan).T)
    return (correlations[np.triu_indices(len(correlations), 1)] > limit).astype(float)[np.newaxis]


# %%
# A search for hostile participants
# ---------------------------------
# Ten regions in two groups: regions of the same group correlate, more so in some participants than in
# others. ``check_sensitivity`` replaces a participant by huge numbers, NaN, very short scans and more, and
# looks for two vectors that are further apart than claimed.

rng = np.random.default_rng(0)
group = np.repeat([0, 1], 5)


def make_scan():
    """Return a scan of one participant."""
    return rng.normal(size=(100, 2))[:, group] * rng.uniform(0.4, 1.2) + rng.normal(size=(100, 10))


analysis = ConnectionPrevalence(n_regions=10, limit=0.3)
print(check_sensitivity(analysis, [make_scan() for _ in range(5)]))

# %%
# A run in this process
# ---------------------

sites = {name: [make_scan() for _ in range(n)] for name, n in (("north", 120), ("south", 80), ("west", 160))}
run = private_analysis(analysis, sites, epsilon=2.0)
found = run.result
print(f"noise on each share: {found.noise:.3f}")
print(run.privacy.guarantee.protected)

# %%
# The result
# ----------

pairs = np.triu_indices(10, 1)
true = np.mean(
    [next(_connections([scan], 0.3, 0, b"", b""))[0] for site in sites.values() for scan in site], axis=0
)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for ax, values, title in zip(axes, (true, found.shares), ("true", "private, ε = 2"), strict=True):
    image = np.full((10, 10), np.nan)
    image[pairs] = values
    shown = ax.imshow(image.T, vmin=0, vmax=1, cmap="viridis")
    ax.set(title=title, xlabel="region", ylabel="region")
figure.colorbar(shown, ax=axes, label="share of participants")

# %%
# In a study.toml
# ---------------
# A table class gives the analysis its keys in ``study.toml``. Its first line is what sites read before they
# approve. A package registers it in the entry-point group ``capedjica.analyses`` (a complete one:
# :doc:`/docs/user-guide/extending`); then ``kind = "prevalence"`` runs with ``capedjica run``, on one machine
# and between hospitals, and its name and version are part of the study's hash:
#
# .. code-block:: toml
#
#    [project.entry-points."capedjica.analyses"]
#    prevalence = "my_package:PrevalenceTable"


class PrevalenceTable(AnalysisTable, frozen=True, kw_only=True):
    """Share of the participants with each connection above a limit."""

    kind: Literal["prevalence"] = "prevalence"
    limit: float = 0.3

    def open(self, setting):
        """Return the analysis for the features of the study."""
        return ConnectionPrevalence(setting.n_features, self.limit)


print(PrevalenceTable(limit=0.4))
plt.show()
