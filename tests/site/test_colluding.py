"""At least one site is assumed to side with the aggregator: sites refuse a study that assumes none."""

import pytest

from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve
from tests.support.small_study import make_study

WORDS = "privacy.n_colluding is 0: the guarantee does NOT hold against any other site"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_site_refuses_a_study_that_assumes_no_colluding_site(tmp_path):
    study = make_study(tmp_path, simulated=False, n_colluding=0)
    homes = find_sites(study, tmp_path / "sites")
    with pytest.raises(InputError, match=f"site s1 cannot approve 'A small study': {WORDS}"):
        approve(homes[0], study)
    assert any(WORDS in problem for problem in problems(homes[0], study))
    assert not homes[0].has_ledger
    with pytest.raises(InputError, match="cannot be run; nothing was spent"):
        run_study(study, homes, tmp_path / "run")


def test_a_site_whose_policy_allows_it_takes_part(tmp_path):
    """Nobody real is in the data of simulated sites, whose policy allows everything."""
    study = make_study(tmp_path, n_colluding=0)
    homes = find_sites(study, tmp_path / "sites")
    assert all(problems(home, study) == [] for home in homes)


@pytest.mark.parametrize("privacy", [{"n_colluding": 1}, {"n_colluding": 0, "mechanism": "conventional"}])
def test_one_is_enough_and_without_masks_it_does_not_matter(tmp_path, privacy):
    study = make_study(tmp_path, simulated=False, **privacy)
    approve(find_sites(study, tmp_path / "sites")[0], study)
