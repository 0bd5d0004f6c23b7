"""
Reading the results of a run in Python
======================================

The folder of a run has everything that its report shows, as arrays, tables and JSON. Here a small study is
simulated and run by the command line, and its results are read with NumPy and the standard library alone.
"""

# %%
# A study on one machine
# ----------------------

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

folder = Path(tempfile.mkdtemp())


def capedjica(*words):
    """Run a command."""
    subprocess.run([sys.executable, "-m", "capedjica", *map(str, words)], check=True, capture_output=True)


options = "--sites 3 --subjects 60 --components 4 --timepoints 100 --image-side 12 --epsilon 20"
capedjica("simulate", folder / "study", *options.split())
capedjica("run", folder / "study")
capedjica("report", folder / "study" / "run")
run = folder / "study" / "run"
print(sorted(path.name for path in run.iterdir() if not path.name.startswith(".")))

# %%
# Maps and their reliability
# --------------------------
# Maps graded "poor" should not be presented as networks.

maps = np.load(run / "maps.npy")
reliability = json.loads((run / "reliability.json").read_text())
figure, axes = plt.subplots(1, len(maps), figsize=(10, 3), layout="constrained")
for ax, one, stability, grade in zip(axes, maps, reliability["stability"], reliability["grade"], strict=True):
    ax.imshow(one.reshape(12, 12), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set(title=f"{grade} ({stability:.2f})", xticks=[], yticks=[])

# %%
# The guarantee and every release
# -------------------------------

privacy = json.loads((run / "privacy.json").read_text())
print(privacy["guarantee"]["protected"])
print(privacy["guarantee"]["bet"])
costs = {}
for release in privacy["releases"]:
    costs[release["label"]] = costs.get(release["label"], 0.0) + max(release["mu"].values()) ** 2
figure, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
ax.barh(list(costs), [cost / sum(costs.values()) for cost in costs.values()])
ax.set(xlabel="share of the cost (of μ²)")
ax.invert_yaxis()

# %%
# The bundle
# ----------
# ``results.zip`` has everything that may be shared, with a hash of each file in ``provenance.json``. A later
# study can use it as its template.

with zipfile.ZipFile(run / "results.zip") as bundle:
    provenance = json.loads(bundle.read("provenance.json"))
    print(len(bundle.namelist()), "files, by capedjica", provenance["capedjica"])
plt.show()
