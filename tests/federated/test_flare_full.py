"""Studies on FLARE that take longer: large statistics, a site that is not there, the demonstration."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest

from capedjica.coordinator.flare.remote_run import Follower, Terms, run_federated
from capedjica.data import make_synthetic
from capedjica.one_machine.local_run import find_sites
from capedjica.site.approval.revocation import find_approval, revoke
from capedjica.study.study_file import Study, write_study
from tests.federated.consortium import PATIENCE, Consortium, consortium
from tests.support.drafts import with_ica
from tests.support.small_study import make_study

pytestmark = pytest.mark.full


def wide_study(folder, side):
    """A study of the paper's method whose second moments are large; scans of four sites."""
    study = make_study(folder, insecure_noise=True)
    sizes = [site.subjects for site in study.content.sites]
    data = make_synthetic(4, sum(sizes), 3, 60, side, 1, site_sizes=sizes)
    for home, subjects in zip(find_sites(study, folder / "sites"), data.sites, strict=True):
        for file, subject in zip(sorted(home.data_path.iterdir()), subjects, strict=True):
            np.save(file, subject)
    (folder / "study.toml").unlink()
    content = with_ica(study.content, method="paper", n_features=side**2, image_shape=None, max_iter=4)
    write_study(folder / "study.toml", content)
    return Study.load(folder)


@pytest.mark.parametrize(("side", "megabytes"), [(30, 3), (53, 32)])
def test_a_large_statistic_travels_whole(tmp_path, side, megabytes):
    study = wide_study(tmp_path, side)
    assert round(8e-6 * study.contract.stages[0].query.size) == megabytes
    parties = Consortium(study)
    try:
        parties.start()
        assert parties.run(seed=3).complete
    finally:
        parties.stop()
    # By a program of its own, as sites are: what ran before in this one decides how threads share sums.
    here = ["run", str(tmp_path), "--out", str(tmp_path / "here"), "--insecure-noise-seed", "3"]
    subprocess.run([sys.executable, "-m", "capedjica", *here], check=True, capture_output=True)
    np.testing.assert_array_equal(parties.unmixing(), np.load(tmp_path / "here" / "unmixing.npy"))


def test_a_study_begins_without_a_site_that_is_not_there(tmp_path):
    present = ["s1", "s2", "s4"]
    with consortium(tmp_path, started=False) as parties:
        parties.start(*present)
        terms = Terms(45.0, replace(PATIENCE, joining=30.0))
        assert run_federated(parties.study, tmp_path / "run", terms).complete
        assert parties.progress().lost.keys() == {"s3"}
        assert parties.spent("s3") == 0.0
        assert all(parties.spent(name) > 0 for name in present)


class Revoking(Follower):
    """Revokes the approval of a site as soon as it released something."""

    def __init__(self, home) -> None:
        self.home, self.released = home, None

    def progress(self, progress) -> None:
        if self.released is None and self.home.totals().overall.n_releases:
            revoke(self.home, find_approval(self.home, "A small study"))
            self.released = self.home.totals().overall.n_releases


def test_a_run_goes_on_without_a_site_that_revokes(tmp_path):
    """What it released stays charged, and nothing more leaves it."""
    with consortium(tmp_path, iterations=300) as parties:
        follower = Revoking(parties.home("s2"))
        assert parties.run(follower).complete
        assert parties.progress().lost.keys() == {"s2"}
        assert 0 < follower.released < parties.n_releases
        assert parties.home("s2").totals().overall.n_releases == follower.released
        assert parties.home("s1").totals().overall.n_releases >= parties.n_releases


def test_the_demonstration_runs_from_an_empty_folder_and_leaves_no_process(tmp_path):
    before = {process.pid for process in psutil.process_iter()}
    arguments = ["federated-demo", "--out", "d", "--subjects", "48", "--components", "4", "--epsilon", "50"]
    ended = subprocess.run(
        [sys.executable, "-m", "capedjica", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "Gain index" in ended.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"d"}
    assert (tmp_path / "d" / "report.html").stat().st_size > 10_000
    left = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before]
    assert not [p for p in left if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    again = subprocess.run(
        [sys.executable, "-m", "capedjica", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 2
    assert "d exists and is not empty; give a new folder" in again.stderr
