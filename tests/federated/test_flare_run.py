"""A study on the real FLARE, from kits to results."""

import numpy as np
import pytest

from capedjica.study.running import find_sites, run_study
from tests.federated.consortium import consortium

pytestmark = pytest.mark.xdist_group("flare")


def test_the_estimate_equals_that_of_one_process_to_the_last_bit(tmp_path):
    with consortium(tmp_path, insecure_noise=True) as parties:
        assert parties.run(seed=7).complete
        study, homes = parties.study, find_sites(parties.study, tmp_path / "sites")
        run_study(study, homes, tmp_path / "here", insecure_noise_seed=7)
        np.testing.assert_array_equal(parties.unmixing(), np.load(tmp_path / "here" / "unmixing.npy"))
