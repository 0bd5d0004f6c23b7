"""The list of what is installed is whole, and notices files that were changed."""

import base64
import hashlib
import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PathDistribution

import pytest

from tests.support.places import ROOT

pytest.importorskip("nvflare")
SCRIPT = ROOT / "deploy" / "sbom.py"
specification = importlib.util.spec_from_file_location("sbom", SCRIPT)
sbom = importlib.util.module_from_spec(specification)
specification.loader.exec_module(sbom)


@pytest.fixture(scope="module")
def listed():
    said = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def test_every_package_that_is_needed_is_listed_with_its_hash(listed):
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    names = {one["name"] for one in listed["components"]}
    assert {"capedjica", "nvflare", "cryptography", "msgspec", "numpy"} <= names
    assert "pytest" not in names
    for one in listed["components"]:
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert len(one["hashes"][0]["content"]) == 64
    needed = sbom.closure("nvflare", [])
    assert set(needed) <= names


@pytest.fixture
def package(tmp_path):
    """A package whose installer wrote down the hash of its one file."""
    folder = tmp_path / "one-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: one\nVersion: 1.0\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"1\n").digest()).rstrip(b"=").decode()
    (folder / "RECORD").write_text(f"one.py,sha256={digest},2\n")
    (tmp_path / "one.py").write_text("1\n")
    return PathDistribution(folder)


def test_a_file_that_was_changed_is_named(package, tmp_path):
    assert list(sbom.changed_files(package)) == []
    (tmp_path / "one.py").write_text("2\n")
    assert list(sbom.changed_files(package)) == ["one: one.py"]
    (tmp_path / "one.py").unlink()
    assert list(sbom.changed_files(package)) == ["one: one.py"]
