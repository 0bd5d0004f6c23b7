"""A site with a kit that it approved, and sockets that no other test uses."""

import pytest

from tests.federated.conftest import home, ready, study, template

__all__ = ["home", "ready", "sockets", "study", "template"]


@pytest.fixture(autouse=True)
def sockets(tmp_path, monkeypatch):
    """The folder of this test's sockets."""
    folder = tmp_path / "sockets"
    monkeypatch.setenv("CAPEDJICA_SOCKETS", str(folder))
    return folder
