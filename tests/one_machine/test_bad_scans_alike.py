"""Scans that cannot be used: the command line and ``on_bad="zero"`` in Python make the same of them."""

import inspect
from pathlib import Path

import numpy as np
import pytest

import capedjica
from capedjica import CapeDJICA
from capedjica.errors import InputError
from tests.support.small_study import COMPONENTS, LENGTH, SIDE, make_study

FEATURES = SIDE * SIDE


def scan(length=LENGTH, features=FEATURES, first=None):
    """Return a scan of noise, with a value for every time point of its first feature."""
    values = np.random.default_rng(0).standard_normal((length, features)).astype(np.float32)
    return values if first is None else np.concatenate([np.full((length, 1), first), values[:, 1:]], axis=1)


# What becomes of scans of each site, after they were enrolled: some cannot be used, others hardly.
BAD = {
    ("s1", 2): scan(first=np.nan),
    ("s2", 2): scan(length=0),
    ("s3", 2): scan(features=FEATURES - 1),
    ("s4", 2): np.array(["no", "numbers"]),
    ("s1", 3): scan(first=1.0),
    ("s2", 3): scan(length=4 * LENGTH + 1),
    ("s3", 3): scan(length=COMPONENTS - 1),
    ("s4", 3): scan(first=np.inf),
}


def scans(folder):
    return [[np.load(path) for path in sorted(site.glob("data/*.npy"))] for site in sorted(folder.glob("s?"))]


def unmixing(sites, **options):
    image = {"scan_length": LENGTH, "image_shape": (SIDE, SIDE)}
    return CapeDJICA(COMPONENTS, mechanism="none", max_iter=6, **image, **options).fit(sites).unmixing_


def test_bad_scans_count_as_zero_on_the_command_line_and_in_python(tmp_path, cli):
    make_study(tmp_path, mechanism="none", epsilon=None)
    assert cli("sites", "enrol", str(tmp_path / "sites")).returncode == 0
    good = scans(tmp_path / "sites")
    for (name, person), values in BAD.items():
        np.save(tmp_path / "sites" / name / "data" / f"sub-{person:02}.npy", values)
    ran = cli("run", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    found, sites = np.load(tmp_path / "run" / "unmixing.npy"), scans(tmp_path / "sites")
    np.testing.assert_allclose(unmixing(sites, on_bad="zero"), found, rtol=1e-6, atol=1e-9)
    # Neither as the scans were, nor as if their people were not there.
    for others in (good, [site[:2] + site[4:] for site in sites]):
        assert not np.allclose(unmixing(others), found, rtol=1e-3)


@pytest.mark.parametrize(("name", "person"), BAD)
def test_by_default_python_names_a_bad_scan_before_anything_is_computed(tmp_path, name, person):
    make_study(tmp_path)
    sites = scans(tmp_path / "sites")
    sites[int(name[1]) - 1][person] = BAD[name, person]
    with pytest.raises(InputError, match=f"site-{name[1]}, subject {person}"):
        unmixing(sites)


def test_where_nothing_is_an_array_the_first_is_named():
    with pytest.raises(InputError, match="site site-1, subject 0 is not an array of numbers"):
        unmixing([[BAD["s4", 2]] * 2] * 2, on_bad="zero")


def test_what_becomes_of_bad_scans_is_documented():
    public = [getattr(capedjica, name) for name in capedjica.__all__]
    own = [one for one in public if inspect.isclass(one) and "on_bad" in inspect.signature(one).parameters]
    assert CapeDJICA in own
    for one in own:
        assert 'on_bad : {"raise", "zero"}, default="raise"' in inspect.getdoc(one), one
    guide = Path(__file__).parents[2] / "docs" / "user-guide" / "getting-started.md"
    words = " ".join(guide.read_text("utf-8").split())
    assert 'With `on_bad="zero"` they count as zero, as they do on the command line.' in words
