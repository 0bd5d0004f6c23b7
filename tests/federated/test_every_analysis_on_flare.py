"""Every kind of analysis on four FLARE sites: the same result as in one process, with the same seed."""

import os

import msgspec
import numpy as np
import pytest

from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.study import analyses
from capedjica.study.analyses import IcaTable, table_class
from tests.federated.consortium import CALM, Consortium
from tests.study.test_foreign_analyses import MEDIAN
from tests.support.drafts import ANALYSES, GROUPS, PUBLIC_KNOWLEDGE, SCANS, TABLE, draft
from tests.support.kinds import make_kind, results_of

# Whatever holds for three in a row holds for one; the others take half a minute each.
QUICK = ("three",)
KINDS = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.full)
    for kind in (*ANALYSES, *PUBLIC_KNOWLEDGE, *GROUPS)
]


def check_both(study, folder):
    """Run a study on FLARE, then in this process with other ledgers, and compare all that came out."""
    parties = Consortium(study)
    try:
        parties.start()
        assert parties.run(seed=3, patience=CALM).complete
    finally:
        parties.stop()
    here = make_kind(
        folder / "here",
        study.content.title,
        study.content,
        insecure_noise=True,
        epsilon=study.content.privacy.epsilon,
    )
    run_study(
        here, find_sites(here, folder / "here" / "sites"), folder / "here" / "run", insecure_noise_seed=3
    )
    found = results_of(folder / "run")
    assert found
    assert found == results_of(folder / "here" / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_on_four_sites_is_what_it_is_in_one_process(tmp_path, kind):
    check_both(make_kind(tmp_path, kind, insecure_noise=True), tmp_path)


@pytest.mark.full
def test_a_number_of_networks_left_open_on_four_sites(tmp_path):
    """Three networks of at most five: sites answer with vectors filled up to five."""
    table = IcaTable(n_components="auto", max_components=5)
    content = msgspec.structs.replace(draft(), features=SCANS, analyses=(table,))
    check_both(make_kind(tmp_path, "auto", content, insecure_noise=True, epsilon=20.0), tmp_path)
    (maps,) = (tmp_path / "run").rglob("maps.npy")
    assert np.load(maps).shape == (3, 6)


@pytest.mark.full
def test_a_median_of_another_package_on_four_sites(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(MEDIAN))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(MEDIAN), os.environ.get("PYTHONPATH", "")]))
    analyses._foreign.cache_clear()
    try:
        table = table_class("median")(low=0.0, high=100.0)
        content = msgspec.structs.replace(draft(), features=TABLE, analyses=(table,))
        check_both(make_kind(tmp_path, "median", content, insecure_noise=True), tmp_path)
    finally:
        analyses._foreign.cache_clear()
