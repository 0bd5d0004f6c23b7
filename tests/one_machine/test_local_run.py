"""Studies on this machine: what a run leaves, how it goes on, and what keeps it from starting."""

import json
import math

import numpy as np
import pytest

from capedjica.coordinator.run.journal import Journal
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.coordinator.run.watcher import Watcher
from capedjica.errors import CapedjicaError, InputError
from capedjica.estimators import CapeDJICA
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy import gaussian_epsilon
from capedjica.site.approval.participation import approve
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.support.small_study import COMPONENTS, SIDE, SIZES, changed, make_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with one study that has been run."""
    folder = tmp_path_factory.mktemp("studies")
    study = make_study(folder)
    run_study(study, find_sites(study, folder / "sites"), folder / "run")
    return folder


def run(folder, study, name, **options):
    return run_study(study, find_sites(study, folder / "sites"), folder / name, **options)


def ledger_sums(study, folder):
    sums = {}
    for home in find_sites(study, folder / "sites"):
        with home.open_ledger() as ledger:
            ledger.verify_chain()
            sums[home.settings.name] = ledger.totals().studies[study.contract.hash].mu2
    return sums


def check_privacy(study, folder, name):
    """The reported spending is that of the ledgers, and within what was asked for."""
    privacy = json.loads((folder / name / "privacy.json").read_text())
    for site, mu2 in ledger_sums(study, folder).items():
        reported = privacy["sites"][site]
        assert reported["spent_mu_squared"] == pytest.approx(mu2, rel=1e-12)
        assert reported["spent_epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(mu2), 1e-5), rel=1e-9)
        assert reported["spent_epsilon"] <= study.content.privacy.epsilon
    assert privacy["epsilon"] == study.content.privacy.epsilon
    return privacy


class Interrupt(Watcher):
    """Interrupts a run after a number of means."""

    def __init__(self, after):
        self.after, self.n_done = after, 0

    def step(self, step):
        self.n_done = step.n_done
        if step.n_done == self.after:
            raise KeyboardInterrupt


def test_a_run_leaves_matrices_maps_the_cost_and_its_origin(folder):
    study = Study.load(folder)
    out = folder / "run"
    mixing, unmixing, maps = (np.load(out / f"{name}.npy") for name in ("mixing", "unmixing", "maps"))
    assert mixing.shape == (SIDE * SIDE, COMPONENTS)
    np.testing.assert_allclose(unmixing @ mixing, np.eye(COMPONENTS), atol=1e-9)
    np.testing.assert_array_equal(maps, mixing.T)
    assert (np.abs(maps).max(axis=1) == 1).all()
    np.testing.assert_allclose(np.loadtxt(out / "maps.csv", delimiter=",", skiprows=1), mixing, rtol=1e-6)
    assert (out / "maps.png").read_bytes().startswith(b"\x89PNG")
    privacy = check_privacy(study, folder, "run")
    assert privacy["private"]
    assert len(privacy["releases"]) == 9
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["study"]["hash"] == study.hash.hex()
    assert provenance["files"]["mixing.npy"] == RunFolder(out).hash_of("mixing.npy")
    assert "complete" in (out / "log.txt").read_text()
    assert not [path for path in out.iterdir() if path.name.endswith(".part")]


def test_a_complete_run_is_not_run_again(folder):
    study = Study.load(folder)
    before = ledger_sums(study, folder), (folder / "run" / "mixing.npy").read_bytes()
    state = run(folder, study, "run")
    assert state.complete
    assert (ledger_sums(study, folder), (folder / "run" / "mixing.npy").read_bytes()) == before


def test_a_budget_is_spent_once(folder):
    """The same study into another folder asks for more than was approved."""
    study = Study.load(folder)
    before = ledger_sums(study, folder)
    with pytest.raises(CapedjicaError, match="was started before: site s1 has spent"):
        run(folder, study, "run-again")
    assert ledger_sums(study, folder) == before


@pytest.mark.parametrize("after", [1, 3, 5, 9])
def test_a_run_goes_on_where_it_was_interrupted(tmp_path, after):
    study = make_study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, study, "run", watcher=Interrupt(after))
    assert not RunFolder(tmp_path / "run").state().complete
    made = ledger_sums(study, tmp_path)
    watcher = Interrupt(0)
    state = run(tmp_path, study, "run", watcher=watcher)
    assert state.complete
    assert state.resumed == 1
    assert watcher.n_done == 9
    privacy = check_privacy(study, tmp_path, "run")
    assert "Lost" not in privacy["statement"]
    assert all(total >= made[site] for site, total in ledger_sums(study, tmp_path).items())
    assert len(privacy["releases"]) == 9


@pytest.mark.parametrize("lost", [0, 2, 4, 8])
def test_a_release_that_was_sent_but_not_kept_stays_charged(tmp_path, monkeypatch, lost):
    """A kill between the sites' answers and the journal: the rest is made with what is left."""
    study = make_study(tmp_path)
    append = Journal.append

    def die(journal, record):
        if len(journal.records) == lost:
            raise KeyboardInterrupt
        append(journal, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, study, "run")
    assert run(tmp_path, study, "run").complete
    privacy = check_privacy(study, tmp_path, "run")
    assert "Lost to interruptions" in privacy["statement"]
    assert len(privacy["releases"]) == 9


def test_the_same_seed_gives_the_same_bits_and_no_seed_never_does(tmp_path):
    study = make_study(tmp_path, insecure_noise=True)
    other = changed(study, tmp_path / "other.toml", title="Another")
    private = [
        changed(study, tmp_path / f"{name}.toml", title=name, insecure_noise=False) for name in ("a", "b")
    ]
    run(tmp_path, study, "one", insecure_noise_seed=5)
    run(tmp_path, other, "two", insecure_noise_seed=5)
    for study in private:
        run(tmp_path, study, study.content.title)
    read = {name: (tmp_path / name / "unmixing.npy").read_bytes() for name in ("one", "two", "a", "b")}
    assert read["one"] == read["two"]
    assert len(set(read.values())) == 3
    privacy = json.loads((tmp_path / "one" / "privacy.json").read_text())
    assert not privacy["private"]
    assert "NOT PRIVATE" in privacy["statement"]


def test_seed_and_study_must_agree(tmp_path):
    study = make_study(tmp_path)
    with pytest.raises(InputError, match="insecure_noise = true"):
        run(tmp_path, study, "run", insecure_noise_seed=5)
    seeded = changed(study, tmp_path / "seeded.toml", insecure_noise=True)
    with pytest.raises(InputError, match="give --insecure-noise-seed"):
        run(tmp_path, seeded, "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mechanism", ["none", "pooled", "conventional", "local"])
def test_other_mechanisms_run_too(tmp_path, mechanism):
    study = make_study(tmp_path)
    epsilon = None if mechanism == "none" else 10.0
    other = changed(study, tmp_path / "other.toml", title=mechanism, mechanism=mechanism, epsilon=epsilon)
    assert run(tmp_path, other, "run").complete


def test_a_run_and_the_estimator_find_the_same(tmp_path):
    """Without noise both are the same computation, on files and on arrays."""
    study = make_study(tmp_path, mechanism="none", epsilon=None)
    run(tmp_path, study, "run")
    data = {
        home.settings.name: [np.load(path) for path in sorted(home.data_path.iterdir())]
        for home in find_sites(study, tmp_path / "sites")
    }
    length = study.content.features.scan_length
    estimator = CapeDJICA(
        COMPONENTS, mechanism="none", image_shape=(SIDE, SIDE), max_iter=6, scan_length=length
    ).fit(data)
    np.testing.assert_allclose(np.load(tmp_path / "run" / "maps.npy"), estimator.components_, atol=1e-6)
    assert "NOT PRIVATE" in json.loads((tmp_path / "run" / "privacy.json").read_text())["statement"]


def test_all_problems_are_listed_and_nothing_is_spent(tmp_path):
    study = make_study(tmp_path)
    sites = tmp_path / "sites"
    (sites / "s1" / "data" / "sub-00.npy").unlink()
    np.save(sites / "s2" / "data" / "sub-03.npy", np.zeros((60, 7)))
    (sites / "s3" / "data" / "sub-01.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00cut")
    (sites / "s4" / "data" / "sub-02.npy").unlink()
    (sites / "s4" / "data" / "sub-02.csv").write_text("1,2\n3,x\n")
    settings = (sites / "s4" / "site.toml").read_text()
    with pytest.raises(InputError) as caught:
        run(tmp_path, study, "run")
    text = str(caught.value)
    assert "nothing was spent" in text
    for part in (
        f"site s1: the study expects {SIZES[0]} subjects",
        "sub-03.npy",
        "sub-01.npy",
        "sub-02.csv",
        "expected 100",
    ):
        assert part in text
    assert not (tmp_path / "run").exists()
    for home in find_sites(study, sites):
        with home.open_ledger() as ledger:
            assert ledger.totals().overall.n_releases == 0
    (sites / "s4" / "site.toml").write_text(settings.replace("study_epsilon = 20.0", "study_epsilon = 5.0"))
    with pytest.raises(InputError, match=r"site s4: the study may spend epsilon 10.*at most epsilon 5"):
        run(tmp_path, study, "run")


def test_a_study_is_run_as_it_was_approved_and_not_otherwise(tmp_path):
    study = make_study(tmp_path, simulated=False)
    homes = find_sites(study, tmp_path / "sites")
    with pytest.raises(InputError, match="site s1: it has not approved 'A small study'"):
        run(tmp_path, study, "run")
    for home in homes:
        approve(home, study)
        approve(home, study)
    more = changed(study, tmp_path / "more.toml", epsilon=12.0)
    with pytest.raises(
        InputError, match=r"changed after it was approved \(privacy.epsilon: 10.0 changed to 12.0\)"
    ):
        run(tmp_path, more, "run")
    assert run(tmp_path, study, "run").complete


def test_all_studies_together_stay_within_the_total(tmp_path):
    study = make_study(tmp_path)
    for home in find_sites(study, tmp_path / "sites"):
        file = home.folder / "site.toml"
        file.write_text(file.read_text().replace("total_epsilon = 50.0", "total_epsilon = 12.0"))
    assert run(tmp_path, study, "run").complete
    second = changed(study, tmp_path / "second.toml", title="Second")
    with pytest.raises(InputError, match="all studies in total are allowed epsilon 12"):
        run(tmp_path, second, "second")


def test_a_folder_of_something_else_is_left_alone(folder, tmp_path):
    study = Study.load(folder)
    other = changed(study, tmp_path / "other.toml", title="Another")
    with pytest.raises(InputError, match="contains a run of another study, 'A small study'"):
        run(folder, other, "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is not the folder of a run"):
        run_study(other, find_sites(other, folder / "sites"), tmp_path / "full")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not the folder of a run"):
        run_study(other, find_sites(other, folder / "sites"), tmp_path / "file")


def test_sites_are_found_by_their_names(folder, tmp_path):
    study = Study.load(folder)
    with pytest.raises(InputError, match=r"contains no folders with a site.toml"):
        find_sites(study, tmp_path)
    SiteHome.create(tmp_path / "x", "s1", 1.0, 1.0, 1e-5, simulated=True)
    with pytest.raises(InputError, match="no folder for site s2, s3, s4"):
        find_sites(study, tmp_path)
    SiteHome.create(tmp_path / "y", "s1", 1.0, 1.0, 1e-5, simulated=True)
    with pytest.raises(InputError, match="two folders are site s1"):
        find_sites(study, tmp_path)


def test_a_site_with_another_key_is_refused(folder, tmp_path):
    study = Study.load(folder)
    for name in study.contract.roster.names:
        SiteHome.create(tmp_path / name, name, 50.0, 20.0, 1e-5, simulated=True)
    with pytest.raises(InputError, match="lists a different key"):
        run_study(study, find_sites(study, tmp_path), tmp_path / "run")


def test_a_run_folder_serves_one_process(tmp_path):
    study = make_study(tmp_path)
    with (
        RunFolder(tmp_path / "run").claim(study),
        pytest.raises(InputError, match="in use by another process"),
    ):
        run(tmp_path, study, "run")
