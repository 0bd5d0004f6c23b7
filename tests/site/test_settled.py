"""Once a study has begun, nothing in the folder of the scans changes who is read or what happens."""

import shutil

import numpy as np
import pytest

from capedjica.coordinator.run.watcher import Watcher
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy.ledger import Summary
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import affected, approve
from capedjica.site.check import site_report
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import record_path
from capedjica.site.participants.cohort import call_roll, enrol, open_people
from tests.site.test_withdrawal import Opened
from tests.support.small_study import SIDE, make_study

PHENOTYPES = "Phenotypic_V1_0b_preprocessed1.csv"


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_study(tmp_path, simulated=False)


@pytest.fixture
def home(study, tmp_path):
    return SiteHome.load(tmp_path / "sites" / "s1")


def begin(home, study):
    """Record one release of a study."""
    with home.open_ledger() as ledger:
        place = study.contract.hash, 0, 0
        ledger.claim(*place)
        ledger.release(*place, 0, ("s1",), bytes(32), 0.1, lambda: b"message", Summary("a sum", 1))


def scan(seed=0):
    return np.random.default_rng(seed).standard_normal((60, SIDE * SIDE)).astype(np.float32)


def write(path, content=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or str(path).encode())


def bids_image(home, person, space="MNI"):
    name = f"sub-{person:02d}"
    return home.data_path / name / "func" / f"{name}_task-rest_space-{space}_desc-preproc_bold.nii.gz"


def make_bids(home):
    for person in range(6):
        image = bids_image(home, person)
        write(image)
        write(image.with_name(f"sub-{person:02d}_task-rest_desc-confounds_timeseries.tsv"))


def make_abide(home):
    rows = [f"A_00{person:05d},A" for person in range(6)]
    write(home.data_path / PHENOTYPES, "\n".join(["FILE_ID,SITE_ID", *rows]).encode())
    for person in range(6):
        write(home.data_path / f"A_00{person:05d}_rois_cc200.1D")


def add_somebody(home):
    np.save(home.data_path / "sub-00a.npy", scan())


def add_a_space(home):
    write(bids_image(home, 3, "T1w"))


def add_a_name_that_is_no_text(home):
    write(home.data_path / "participants.tsv", b"participant_id\nsub-\xff\n")


def add_a_derivative(home):
    write(home.data_path / "A_0000003_rois_aal.1D")


def remove_somebody(home):
    (home.data_path / "sub-02.npy").unlink()


CASES = {
    "somebody came": (None, add_somebody, None),
    "somebody went": (None, remove_somebody, None),
    "an image in a second space": (make_bids, add_a_space, "images in several spaces"),
    "a name that is no text": (make_bids, add_a_name_that_is_no_text, "expected a table of UTF-8 text"),
    "a second derivative": (make_abide, add_a_derivative, "several derivatives of ABIDE"),
}


@pytest.mark.parametrize("case", CASES)
def test_once_begun_nobody_in_the_folder_of_the_scans_is_in_the_way(home, study, case):
    make, change, words = CASES[case]
    if make is not None:
        shutil.rmtree(home.data_path)
        make(home)
    approve(home, study)
    before = open_people(home, study).people
    assert before == call_roll(home, study).people
    assert len(before) == 6
    begin(home, study)
    change(home)
    if words is not None:
        with pytest.raises(InputError, match=words):
            call_roll(home, study)
    assert open_people(home, study).people == before
    assert problems(home, study) == []
    assert site_report(home, study)["obstacles"] == []


def test_a_new_list_does_not_change_a_study_that_has_begun(home, study):
    enrol(home, home.settings.data, study)
    approve(home, study)
    before = open_people(home, study).people
    begin(home, study)
    np.save(home.data_path / "sub-01.npy", np.full((60, SIDE * SIDE), np.nan))
    second = enrol(home, home.settings.data, study, again=True)
    assert len(second.enrolled) == 5
    (words,) = affected(home, None, second)
    assert words.endswith("If it has started, it continues with the participants that were approved")
    assert open_people(home, study).people == before
    assert problems(home, study) == []


def test_a_folder_that_is_not_there_is_everybodys(home, study):
    """It is refused: it says nothing about a person, and zeros would be of use to nobody."""
    approve(home, study)
    begin(home, study)
    for scan_file in list(home.data_path.iterdir()):
        scan_file.unlink()
    for words in ("is empty; expected", "is not a folder; expected"):
        assert [words in problem for problem in problems(home, study)] == [True]
        assert [words in obstacle for obstacle in site_report(home, study)["obstacles"]] == [True]
        with pytest.raises(InputError, match=words):
            open_people(home, study)
        shutil.rmtree(home.data_path, ignore_errors=True)


def test_a_study_that_has_begun_does_not_go_on_without_its_record(home, study):
    approve(home, study)
    begin(home, study)
    record_path(home, study).unlink()
    (words,) = problems(home, study)
    assert words.endswith("restore it from a backup")


class Stopping(Watcher):
    """Stops a run in the middle."""

    def __init__(self):
        self._left = 4

    def step(self, step):
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_a_run_that_goes_on_reads_the_people_who_were_approved(study, tmp_path, monkeypatch):
    """Not the one who came meanwhile, although nobody was enrolled."""
    homes = find_sites(study, tmp_path / "sites")
    for home in homes:
        approve(home, study)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, homes, tmp_path / "run", watcher=Stopping())
    add_somebody(homes[0])
    remove_somebody(homes[1])
    opened = Opened(monkeypatch)
    assert run_study(study, homes, tmp_path / "run").complete
    assert opened.of(homes[0], "sub-05")
    assert opened.of(homes[0], "sub-00a") == []
    assert "the scans of 1 of 9 participants could not be read" in (homes[1].folder / "site.log").read_text()
