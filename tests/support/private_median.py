"""The example of an analysis of another package, installed for a test."""

import sys
import tomllib
from contextlib import contextmanager

import pytest

from capedjica.study import analyses
from tests.support.places import ROOT

MEDIAN = ROOT / "examples" / "private-median"


def install(folder):
    """Write into a folder what pip would: the module, and what tells Python of its entry points."""
    project = tomllib.loads((MEDIAN / "pyproject.toml").read_text())["project"]
    (folder / "private_median.py").write_text((MEDIAN / "private_median.py").read_text())
    told = folder / f"private_median-{project['version']}.dist-info"
    told.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (told / "METADATA").write_text(about)
    ((group, points),) = project["entry-points"].items()
    lines = [f"{name} = {value}" for name, value in points.items()]
    (told / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


@contextmanager
def installed_median(folder):
    """Have the package where Python looks for packages."""
    folder.mkdir()
    install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        analyses._foreign.cache_clear()
        yield folder
    analyses._foreign.cache_clear()
    sys.modules.pop("private_median", None)
