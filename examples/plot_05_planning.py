"""
Planning a study
================

How large must ε be, or how many participants are needed? A plan answers from public numbers alone, before
any data are read: noise and cost of a run are exactly those of its plan.
"""

# %%
# A plan as JSON
# --------------
# ``capedjica plan`` shows tables; with ``--json``, the same numbers for programs.

import json
import subprocess
import sys

import matplotlib.pyplot as plt

options = "--sites 4 --subjects 600 --components 10 --features 400 --image-shape 20x20 --epsilon 2 --json"
command = [sys.executable, "-m", "capedjica", "plan", *options.split()]
plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

# %%
# The releases: how many numbers each has, the typical norm of its noise relative to the largest possible
# norm of a mean (above 1, one release has more noise than signal), and its part of ε.

for stage in plan["stages"]:
    print(
        f"{stage['n_releases']:3} x {stage['name']:26} {stage['n_values']:4} numbers, "
        f"noise {stage['noise_norm']:.2f}, ε {stage['epsilon']:.2f}"
    )

# %%
# What would change it
# --------------------
# Left: the participants needed for the same noise at another ε; half of ε needs almost twice as many.
# Middle: the variance of other mechanisms at the same ε. *pooled* trusts the aggregator with the data;
# *conventional* is independent noise of each site. Right: the guarantee if more sites collude than assumed.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
needed = plan["subjects_needed"]
axes[0].loglog([one["epsilon"] for one in needed], [one["subjects"] for one in needed], "o-")
for one in needed:
    axes[0].annotate(
        f"{one['subjects']:,}", (one["epsilon"], one["subjects"]), (4, 4), textcoords="offset points"
    )
axes[0].set(xlabel="ε", title="Participants needed")
axes[0].set_xticks([one["epsilon"] for one in needed], [f"{one['epsilon']:g}" for one in needed])
axes[0].minorticks_off()
compared = {name: one["variance_at_equal_epsilon"] for name, one in plan["comparison"].items()}
axes[1].barh(list(compared), list(compared.values()), color="tab:orange")
axes[1].set(xscale="log", title="Variance at equal ε")
axes[1].invert_yaxis()
colluding = plan["colluding"]
axes[2].bar(
    [str(one["n_colluding"]) for one in colluding], [one["epsilon"] for one in colluding], color="tab:red"
)
axes[2].set(xlabel="colluding sites", title="ε if more sites collude")

# %%
# ``--predict`` adds the quality of the maps to be expected, by simulation. Group comparisons have a *minimum
# detectable difference* in their plan, under ``detectable``.

print(plan["setting"]["guarantee"]["bet"])
plt.show()
