"""Methods that are found by their names get what the study says."""

import sys
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.algorithms.ica.by_name import guided_method
from capedjica.algorithms.ica.template import Template
from capedjica.data import make_synthetic
from capedjica.study.analyses import IcaTable
from capedjica.study.study_file import Study
from tests.support.drafts import draft

GIVEN = IcaTable(
    method="guided", n_components=3, template="template.npy", template_origin="public", max_iter=5
)


class AskedError(Exception):
    """Holds what a method was asked for."""


def asked(*arguments):
    raise AskedError(*arguments)


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    for name, what in (("guided", "GuidedMethod"), ("spatial", "SpatialMethod")):
        module = SimpleNamespace(**{what: asked})
        monkeypatch.setitem(sys.modules, f"capedjica.algorithms.ica.{name}", module)


def arguments_of(call):
    with pytest.raises(AskedError) as caught:
        call()
    return caught.value.args


def test_methods_of_a_study(tmp_path):
    np.save(tmp_path / "template.npy", np.eye(3, 12))
    content = draft()
    guided = Study(msgspec.structs.replace(content, analyses=(GIVEN,)), tmp_path)
    template, length, noise, iterations, basis = arguments_of(lambda: guided.steps)
    assert template.n_networks == 3
    assert (length, iterations, basis) == (60, 5, None)
    assert noise > 0
    spatial = Study(msgspec.structs.replace(content, analyses=(IcaTable(method="spatial", n_components=3),)))
    assert arguments_of(lambda: spatial.steps)[:3] == (12, 3, 60)


def test_methods_of_the_estimator():
    data = make_synthetic(2, 8, 3, 40, 6, 0)
    known = CapeDJICA(epsilon=1.0, method="guided", template=data.mixing.T, scan_length=40, max_iter=4)
    template, length, _, iterations, _ = arguments_of(lambda: known.fit(data.sites))
    assert isinstance(template, Template)
    assert (length, iterations) == (40, 4)
    free = CapeDJICA(3, 1.0, method="spatial", scan_length=40)
    assert arguments_of(lambda: free.fit(data.sites))[:3] == (36, 3, 40)


def test_what_a_method_itself_lacks_is_not_hidden(monkeypatch):
    """Only the method's own module may be missing; another that it imports is a fault."""
    monkeypatch.delitem(sys.modules, "capedjica.algorithms.ica.guided")

    def broken(name):
        raise ModuleNotFoundError("no module", name="other")

    monkeypatch.setattr("capedjica.algorithms.ica.by_name.import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        guided_method(Template.of(np.eye(2, 4)), 10, 0.0, None, None)
