"""What data managers and coordinators stumbled over, each as a behaviour."""

import json
import re
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from capedjica.securesum.identity import Card
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.locks import locked
from tests.support.small_scans import make_scans
from tests.support.small_study import SIZES, changed, make_study
from tests.support.terminal import Terminal


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_study(tmp_path, simulated=False)


@pytest.fixture
def site(study):
    return study.folder / "sites" / "s1"


# Sites are named by position; --site is the same


@pytest.mark.parametrize(
    "command",
    ["site outbox", "ledger show", "ledger verify", "ledger rebuild-head", "site purge", "site check"],
)
def test_a_site_is_named_by_position_or_by_option(command, site, cli):
    SiteHome.load(site).open_ledger().close()
    placed = cli(*command.split(), str(site))
    named = cli(*command.split(), "--site", str(site))
    assert (placed.returncode, placed.stdout) == (named.returncode, named.stdout) != (2, "")
    both = cli(*command.split(), str(site), "--site", str(site))
    assert both.returncode == 2
    assert "got two sites" in both.stderr


def test_without_a_name_the_site_is_here(site, cli, monkeypatch):
    monkeypatch.chdir(site)
    assert "next: capedjica site enrol" in cli("site", "check").stdout


def test_approve_takes_the_site_by_position(study, site, cli):
    approved = cli("site", "approve", str(study.folder), str(site))
    assert approved.returncode == 0, approved.stderr
    assert "Site s1 approved 'A small study'" in approved.stdout


# Limits


def test_what_would_exceed_the_total_is_refused_before_it_is_approved(study, site, cli):
    settings = site / "site.toml"
    settings.write_text(settings.read_text().replace("total_epsilon = 50.0", "total_epsilon = 9.0"))
    result = cli("site", "approve", str(study.folder), str(site), "--yes")
    assert result.returncode == 2
    assert "the study may cost epsilon 10" in result.stderr
    assert "all studies in total are allowed epsilon 9" in result.stderr
    assert not list((site / "approved").glob("*.toml"))
    assert SiteHome.load(site).totals() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--total-epsilon", "2", "--study-epsilon", "3"],
            "study_epsilon must be at most total_epsilon, 2; got 3",
        ),
        (["--study-epsilon", "nan"], "epsilon must be a number, got nan"),
        (["--data", "nowhere"], "nowhere is not a folder; expected a folder with scans"),
        (["--data", "empty"], "empty contains no .npy, .csv"),
        (["--data", "empty", "--kind", "abide"], "empty is not a copy of ABIDE"),
    ],
)
def test_a_site_is_made_only_of_what_can_be_used(arguments, message, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result = cli("site", "init", "north", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "north").exists()


def test_a_small_total_is_also_the_limit_of_each_study(tmp_path, cli):
    for total, study in (("1", 1.0), ("7", 2.0)):
        folder = tmp_path / total
        made = cli("site", "init", "north", "--folder", str(folder), "--total-epsilon", total)
        assert made.returncode == 0, made.stderr
        assert SiteHome.load(folder).settings.policy.study_epsilon == study


def test_a_new_site_says_how_many_people_it_found(site, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = cli("site", "init", "north", "--data", str(site / "data"))
    assert "Found 6 participants" in made.stdout
    assert "Next: capedjica site check north" in made.stdout


# What check says


def test_check_ends_with_how_many_are_usable_and_what_is_next(study, site, cli):
    scan = site / "data" / "sub-02.npy"
    broken = np.load(scan)
    broken[3, 4] = np.nan
    np.save(scan, broken)
    shutil.copy(scan, site / "data" / "sub-02_run-2.npy")  # a second reason, the same person
    checked = cli("site", "check", str(site))
    assert checked.returncode == 2
    assert checked.stdout.splitlines()[-1].startswith("5 of 6 usable; next: capedjica site enrol ")
    assert cli("site", "enrol", str(site)).returncode == 0
    enrolled = cli("site", "check", str(site)).stdout.splitlines()[-1]
    assert enrolled.startswith("5 of 5 usable; next: send ")
    assert "s1.card to the coordinator" in enrolled
    facts = json.loads(cli("site", "check", str(site), "--json").stdout)
    assert facts["usable"] == {"people": 5, "usable": 5}


def test_problems_of_the_data_are_listed_once(site, cli):
    for scan in ("sub-01", "sub-04"):
        (site / "data" / f"{scan}.npy").write_bytes(b"")
    checked = cli("site", "check", str(site))
    assert checked.stdout.count(": an empty file") == 2
    assert "is not ready for any study: 2 problems with the data, listed above" in checked.stderr
    assert ": an empty file" not in checked.stderr
    assert len(json.loads(cli("site", "check", str(site), "--json").stdout)["obstacles"]) == 2


def test_a_site_none_of_whose_participants_is_found_is_not_ready(site, cli):
    assert cli("site", "enrol", str(site)).returncode == 0
    for scan in (site / "data").iterdir():
        scan.rename(scan.with_stem(f"sub-9{scan.stem[4:]}"))
    checked = cli("site", "check", str(site))
    assert checked.returncode == 2
    assert "is ready" not in checked.stdout
    assert checked.stdout.splitlines()[-1].startswith("0 of 6 usable; next: correct the problems")
    assert "none of its 6 enrolled participants is usable" in checked.stderr


def test_a_pattern_changed_after_enrolment_is_told(site, cli):
    assert cli("site", "enrol", str(site)).returncode == 0
    words = "Those of the enrolment apply until"
    assert words not in cli("site", "check", str(site)).stdout
    settings = site / "site.toml"
    settings.write_text(settings.read_text().replace('pattern = "*"', 'pattern = "sub-0[01].npy"'))
    assert words in " ".join(cli("site", "check", str(site)).stdout.split())
    assert cli("site", "enrol", str(site), "--again").returncode == 0
    assert words not in cli("site", "check", str(site)).stdout


def test_a_head_that_cannot_be_written_is_named(study, site, cli):
    settings = site / "site.toml"
    settings.write_text(
        re.sub("(?m)^head = .*", f'head = "{site}/site.toml/north.head"', settings.read_text())
    )
    refused = cli("site", "approve", str(study.folder), str(site), "--yes")
    assert refused.returncode == 2
    assert "the folder of the ledger's head, cannot be created" in refused.stderr


def test_what_approval_cannot_resolve_does_not_lead_to_approval(study, site, cli):
    cli("site", "enrol", str(site))
    settings = site / "site.toml"
    settings.write_text(settings.read_text().replace("total_epsilon = 50.0", "total_epsilon = 9.0"))
    checked = cli("site", "check", str(site), "--study", str(study.folder))
    assert checked.stdout.splitlines()[-1].startswith("6 of 6 usable; next: resolve the problems below")


def test_an_approved_kit_is_followed_by_a_start(study, site, cli):
    cli("site", "enrol", str(site))
    approve, check = ("site", "approve"), ("site", "check", str(site), "--study", str(study.folder))
    assert cli(*approve, str(study.folder), str(site)).returncode == 0
    assert "next: nothing to do until the coordinator runs the study or sends its kit" in cli(*check).stdout
    assert cli("study", "provision", str(study.folder), "--host", "localhost").returncode == 0
    kit = study.folder / "federation" / "kits" / "s1.zip"
    assert cli(*approve, str(kit), str(site)).returncode == 0
    assert (
        cli(*check)
        .stdout.splitlines()[-1]
        .endswith(f"next: capedjica site start {site}, unless it is running.")
    )


def test_check_follows_a_study_to_its_end(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    study = make_study(tmp_path, iterations=2)
    site = tmp_path / "sites" / "s1"

    def checked():
        return cli("site", "check", str(site), "--study", str(tmp_path)).stdout

    for name in ("s1", "s2", "s3", "s4"):
        cli("site", "enrol", str(tmp_path / "sites" / name))
    assert "next: capedjica site approve STUDY" in checked().splitlines()[-1]
    ran = cli("run", str(tmp_path))
    assert ran.returncode == 0
    assert "already complete" not in ran.stdout
    assert "It has finished, with " in checked()
    assert "next: nothing to do, the study has finished" in checked().splitlines()[-1]
    # Finished, it is no study that has begun.
    home = SiteHome.load(site)
    assert home.is_over(study.hash.hex())
    assert "'A small study': finished, epsilon " in cli("site", "show", str(site)).stdout
    withdrawn = cli("site", "withdraw", "sub-01", str(site)).stdout
    assert "has started" not in withdrawn
    assert "A small study" not in cli("site", "enrol", str(site), "--again").stdout
    assert "names the current key" not in cli("site", "rotate-key", str(site)).stdout
    # And the run is not done again.
    releases, spent = (tmp_path / "run" / "releases.bin").read_bytes(), home.totals()
    again = cli("run", str(tmp_path))
    assert again.returncode == 0
    assert "already complete" in again.stdout
    assert (tmp_path / "run" / "releases.bin").read_bytes() == releases
    assert home.totals() == spent
    looked = cli("status", str(tmp_path))
    assert looked.returncode == 0
    assert "complete" in looked.stdout


@pytest.mark.parametrize("odd", ["first", "last"])
def test_the_odd_one_out_is_the_one_unlike_the_others(site, cli, odd):
    name = {"first": "sub-00", "last": "sub-05"}[odd]
    np.save(site / "data" / f"{name}.npy", np.random.default_rng(0).normal(size=(60, 70)))
    short = np.random.default_rng(1).normal(size=(20, 100))
    np.save(site / "data" / "sub-03.npy", short)
    checked = cli("site", "check", str(site))
    wrong = checked.stdout.split("Problems with the data")[1].split("Privacy cost")[0]
    assert f"{name}.npy: 70 features" in wrong
    assert "note: " in wrong
    assert "sub-03.npy: 20 time points; expected about 60" in wrong
    assert wrong.count(".npy") == 2
    assert checked.stdout.splitlines()[-1].startswith("5 of 6 usable")


def test_without_a_study_missing_confounds_short_scans_and_odd_shapes_of_images_are_noted(tmp_path, cli):
    """What most scans of the site have is what is expected; a scan unlike them is noted, not refused."""
    make_scans(tmp_path / "trial", subjects=(5, 2, 2))
    home = tmp_path / "trial" / "sites" / "site-1"
    scans = [sorted(person.rglob("*_bold.nii.gz"))[0] for person in sorted((home / "data").glob("sub-*"))]
    next(scans[0].parent.glob("*_desc-confounds_timeseries.tsv")).unlink()
    for scan, part in ((scans[1], np.s_[..., :20]), (scans[2], np.s_[1:])):
        image = nibabel.load(scan)
        volumes = np.asarray(image.dataobj)[part]
        nibabel.save(nibabel.Nifti1Image(volumes, image.affine, image.header), scan)
    checked = cli("site", "check", str(home))
    wrong = checked.stdout.split("Problems with the data")[1].split("Privacy cost")[0]
    notes = [" ".join(note.split()) for note in wrong.split("note: ")[1:]]
    for scan, words in zip(
        scans,
        ("no confounds table; expected one, as for", "20 time points", "15 x 19 x 16"),
        strict=False,
    ):
        assert any(words in note for note in notes if scan.name in "".join(note.split())), (words, notes)
    last = checked.stdout.splitlines()[-1]
    assert last.startswith("5 of 5 usable; next: capedjica site enrol ")


# Withdrawal is asked about


def test_on_a_terminal_a_withdrawal_is_asked_for(site):
    terminal = Terminal("site", "withdraw", "sub-01", str(site), cwd=site)
    terminal.answer("Withdraw the consent of sub-01 permanently?", "n")
    terminal.expect("nothing was changed")
    assert terminal.close() == 1
    assert not list(site.glob("withdrawn*"))
    terminal = Terminal("site", "withdraw", "sub-01", str(site), cwd=site)
    terminal.answer("Withdraw the consent of sub-01 permanently?", "y")
    terminal.expect("sub-01 withdrew on 20")
    assert terminal.close() == 0
    unasked = Terminal("site", "withdraw", "sub-02", str(site), "--yes", cwd=site)
    unasked.expect("sub-02 withdrew on 20")
    assert "Withdraw the consent" not in unasked.text
    assert unasked.close() == 0


# Cards


def test_no_number_is_typed_when_cards_are_added(study, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = ["--components", "3", "--image-shape", "10x10", "--timepoints", "60", "--epsilon", "8"]
    assert cli("study", "new", "joint/study.toml", "--title", "Joint", *numbers).returncode == 0
    cards = []
    for number in range(1, 5):
        home = SiteHome.load(study.folder / "sites" / f"s{number}")
        assert cli("site", "enrol", str(home.folder)).returncode == 0
        cards.append(str(home.card_path))
    assert Card.read((study.folder / "sites" / "s1" / "s1.card").read_text()).n_enrolled == SIZES[0]
    wrong = cli("study", "add-site", cards[0], "--subjects", "99", "--study", "joint")
    assert wrong.returncode == 2
    assert "got 99 subjects, but its card states 6 enrolled participants" in wrong.stderr
    twice = cli("study", "add-site", *cards, cards[0], "--study", "joint")
    assert twice.returncode == 2
    assert "[[sites]]\nname" not in (tmp_path / "joint" / "study.toml").read_text()
    added = cli("study", "add-site", *cards, "--study", "joint")
    assert added.returncode == 0, added.stderr
    assert added.stdout.count("by phone or in person") == 4
    assert "The study's hash is now" in added.stdout
    assert (
        added.stdout.splitlines()[-1]
        == "Next: capedjica study show joint/study.toml; capedjica plan joint/study.toml"
    )
    file = (tmp_path / "joint" / "study.toml").read_text()
    assert [f"subjects = {size}" in file for size in SIZES] == [True] * 4
    # What a study holds is the card of before, so that its hash is what it was.
    assert "capedjica-site-2" not in file


def test_a_new_key_signs_the_number_again(study, site, cli):
    cli("site", "enrol", str(site))
    rotated = cli("site", "rotate-key", str(site), "--yes")
    assert rotated.returncode == 0
    home = SiteHome.load(site)
    card = Card.read(home.card_path.read_text())
    assert (card.site, card.n_enrolled) == (home.card(), 6)
    assert home.card_path.read_text().strip() in rotated.stdout


# Runs on one machine


def test_what_keeps_sites_from_a_run_is_in_one_table(study, cli):
    (study.folder / "sites" / "s3" / "data" / "sub-00.npy").unlink()
    cli("site", "approve", str(study.folder), str(study.folder / "sites" / "s1"))
    result = cli("run", str(study.folder))
    assert result.returncode == 2
    rows = [line.split() for line in result.stderr.splitlines() if line.startswith("  s")]
    table = {row[0]: row[1:4] for row in rows if row[0] in ("s1", "s2", "s3", "s4")}
    assert table == {
        "s1": ["6", "6", "yes"],
        "s2": ["9", "9", "no"],
        "s3": ["7", "6", "no"],
        "s4": ["8", "8", "no"],
    }
    assert cli("sites", "approve", str(study.folder), "--yes").returncode == 2
    # One cannot, so none does, not even those before it.
    for name in ("s2", "s3", "s4"):
        assert SiteHome.load(study.folder / "sites" / name).totals() is None
    # What is advised is a command that works.
    (advised,) = re.findall(
        r"site s2: .* and run: capedjica (site approve STUDY \S+/s2)$", result.stderr, re.M
    )
    assert cli(*advised.replace("STUDY", str(study.folder)).split()).returncode == 0


def test_what_is_next_is_a_command_that_works(tmp_path, monkeypatch, cli):
    """Where sites are not next to the study, the next command names their folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_study(tmp_path, iterations=1)
    monkeypatch.chdir(tmp_path)
    Path("sites").rename("elsewhere")
    enrolled = cli("sites", "enrol", "elsewhere").stdout
    assert "Next: capedjica study new STUDY.toml --sites elsewhere\n" in enrolled
    assert "capedjica study add-site elsewhere/*/*.card --study STUDY.toml" in enrolled
    approved = cli("sites", "approve", "study.toml", "elsewhere", "--yes")
    last = approved.stdout.splitlines()[-1]
    assert last == "Next: capedjica run study.toml --sites elsewhere"
    assert cli(*last.removeprefix("Next: capedjica ").split()).returncode == 0


def test_status_of_a_run_on_one_machine(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    study = make_study(tmp_path, iterations=2)
    before = cli("status", str(tmp_path))
    assert before.returncode == 10
    assert "capedjica run" in " ".join(before.stdout.split())
    run = tmp_path / "run"
    assert cli("run", str(tmp_path)).returncode == 0
    facts = json.loads(cli("status", str(tmp_path), "--json").stdout)
    assert (facts["state"], facts["n_done"] > 0) == ("complete", True)
    assert float(facts["epsilon"]) == pytest.approx(10, rel=0.2)
    state = json.loads((run / "run.json").read_text()) | {"complete": False}
    (run / "run.json").write_text(json.dumps(state))
    stopped = cli("status", str(tmp_path))
    assert stopped.returncode == 12
    assert "interrupted" in stopped.stdout
    with locked(run / ".lock", "in use"):
        running = cli("status", str(tmp_path))
    assert running.returncode == 11
    assert "running since" in running.stdout
    other = changed(study, tmp_path / "other.toml", title="Another")
    assert cli("status", str(tmp_path / "other.toml")).returncode == 2, other


def test_a_sealed_study_without_sites_here_is_run_over_the_network(study, tmp_path, cli):
    joint = tmp_path / "joint"
    (joint / "federation").mkdir(parents=True)
    shutil.copy(study.folder / "study.toml", joint)
    assert "sites contains no folders with a site.toml" in cli("run", str(joint)).stderr
    (joint / "federation" / "sealed.json").write_text("{}")
    refused = cli("run", str(joint))
    assert refused.returncode == 2
    assert f"To run it at its sites: capedjica run {joint} --engine flare" in refused.stderr


def test_sites_that_can_be_asked_are_asked_before_sealing(study, cli):
    cli("site", "enrol", str(study.folder / "sites" / "s3"), "--participant-label", "00")
    seal = ["study", "provision", str(study.folder), "--host", "localhost", "--sites"]
    result = cli(*seal, str(study.folder / "sites"))
    assert result.returncode == 2
    assert "was not sealed: site s3: the study expects 7 subjects, but this site enrolled 1" in result.stderr
    assert result.stderr.splitlines()[-2].split()[:3] == ["s3", "7", "1"]
    assert not (study.folder / "federation").exists()


# What was meant


def test_a_folder_next_to_the_right_one_names_the_right_one(study, site, cli):
    above = cli("sites", "enrol", str(study.folder))
    assert above.returncode == 2
    assert f"did you mean {study.folder / 'sites'}?" in above.stderr
    one = cli("sites", "enrol", str(site))
    assert one.returncode == 2
    assert f"it is one site; give the folder of all sites, {site.parent}" in one.stderr


def test_a_study_is_not_the_folder_of_its_run(study, site, cli):
    for words, expected in (("", "a complete run, or an unpacked"), ("run", "did you mean")):
        if words:
            (study.folder / words).mkdir()
            (study.folder / words / "run.json").write_text("{}")
        refused = cli("site", "results", str(study.folder), str(site))
        assert refused.returncode == 2
        assert expected in refused.stderr
        assert "unmixing.npy does not exist" in refused.stderr


def test_a_study_that_is_refused_leaves_no_folder(study, tmp_path, cli):
    options = [
        "--title",
        "x",
        "--components",
        "3",
        "--timepoints",
        "60",
        "--epsilon",
        "-1",
        "--features",
        "100",
    ]
    refused = cli(
        *("study", "new", str(tmp_path / "new" / "study.toml"), *options),
        *("--sites", str(study.folder / "sites"), "--mask", str(masked(tmp_path))),
    )
    assert refused.returncode == 2
    assert not (tmp_path / "new").exists()


def masked(folder):
    path = folder / "mask.nii.gz"
    nibabel.Nifti1Image(np.ones((4, 5, 5), dtype=np.uint8), np.eye(4)).to_filename(path)
    return path


def test_the_outbox_says_what_it_does_not_list(study, site, cli):
    """Key agreement, status and refusals leave a site too, and are in no list."""
    empty = " ".join(cli("site", "outbox", str(site)).stdout.split())
    assert empty.startswith("Nothing computed from participants' data has ever left this site.")
    for words in ("to agree on masks, public keys, encrypted shares", "that the site is online", "refusals"):
        assert words in empty
    shown = " ".join(cli("study", "show", str(study.folder)).stdout.split())
    assert "its ledger (its record of every release)" in shown
    assert cli("sites", "approve", str(study.folder), "--yes").returncode == 0
    assert cli("run", str(study.folder)).returncode == 0
    full = " ".join(cli("site", "outbox", str(site)).stdout.split())
    assert "messages in total." in full
    assert "kB in total)" in full
    assert "to agree on masks" in full


# Tables of another width than the study


@pytest.fixture
def narrow(tmp_path, monkeypatch, cli):
    """Two enrolled sites whose tables have 64 columns."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "tables" / name).mkdir(parents=True)
        for number in range(2):
            scan = np.random.default_rng(number).normal(size=(20, 64))
            np.save(tmp_path / "tables" / name / f"{name}{number}.npy", scan)
    assert cli("sites", "init", "sites", "--data", "tables").returncode == 0
    assert cli("sites", "enrol", "sites").returncode == 0
    return tmp_path / "sites"


def _new(cli, features, *sites):
    asked = ["--title", "N", "--components", "3", "--timepoints", "20", "--epsilon", "8"]
    return cli("study", "new", "study.toml", *asked, "--features", str(features), *sites)


@pytest.mark.parametrize("sites", [["--sites", "sites"], ["--site", "sites/a", "--site", "sites/b"]])
def test_a_study_that_fits_no_table_of_its_sites_is_not_written(narrow, cli, sites):
    refused = _new(cli, 200, *sites)
    assert refused.returncode == 2
    for name in ("a", "b"):
        assert f"site {name}: its tables have 64 columns" in refused.stderr
    assert "expected 200, the features of the study" in refused.stderr
    assert not (narrow.parent / "study.toml").exists()
    assert _new(cli, 64, *sites).returncode == 0


def test_a_study_that_fits_no_table_of_a_site_is_not_approved(narrow, cli):
    assert _new(cli, 200).returncode == 0
    cards = [str(path) for path in narrow.glob("*/*.card")]
    assert cli("study", "add-site", *cards, "--study", "study.toml").returncode == 0
    for command in (["site", "approve", "study.toml", "sites/a"], ["sites", "approve", "study.toml"]):
        refused = cli(*command, "--yes")
        assert refused.returncode == 2
        assert "site a cannot approve 'N': its tables have 64 columns" in refused.stderr
        assert "expected 200" in refused.stderr
        assert not list(narrow.glob("*/approved/*.toml"))
    assert SiteHome.load(narrow / "a").totals() is None


def test_a_study_with_public_files_is_known_by_its_hash(narrow, cli):
    """The files are not copied at approval, and the hash of the contract depends on them."""
    grid = "\n".join(
        f"{x},{y},{z}" for x in (-45, -15, 15, 45) for y in range(-80, 40, 30) for z in range(-20, 60, 20)
    )
    (narrow.parent / "centres.csv").write_text(f"x,y,z\n{grid}\n")
    asked = ["--title", "N", "--components", "3", "--timepoints", "20", "--epsilon", "8", "--sites", "sites"]
    made = cli("study", "new", "joint/study.toml", *asked, "--regions", "centres.csv")
    assert made.returncode == 0, made.stderr
    assert cli("sites", "approve", "joint", "sites", "--yes").returncode == 0
    study, home = Study.load("joint"), SiteHome.load("sites/a")
    assert f"Hash of N: {study.hash.hex()}" in cli("ledger", "show", "sites/a").stdout
    assert "'N': approved, epsilon 0 of 8" in cli("site", "show", "sites/a").stdout
    home.note_over(study.hash, "2026-01-01")
    assert "'N': finished, epsilon 0 of 8" in cli("site", "show", "sites/a").stdout
    assert "spent and reserved: epsilon 0;" in cli("site", "show", "sites/a").stdout
    revoked = cli("site", "revoke", study.hash.hex(), "sites/a")
    assert revoked.returncode == 0, revoked.stderr
    assert "revoked its approval of 'N'" in revoked.stdout


def test_status_takes_the_folder_of_a_run_too(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_study(tmp_path, iterations=1)
    out = str(tmp_path / "other")
    assert cli("run", str(tmp_path), "--out", out).returncode == 0
    looked = cli("status", out)
    assert looked.returncode == 0
    assert "complete" in looked.stdout
    assert looked.stdout == cli("status", str(tmp_path), "--out", out).stdout
    # Next to the study there is none, and it is said where a run was looked for.
    absent = cli("status", str(tmp_path))
    assert absent.returncode == 10
    assert "there is no run in" in absent.stdout
    assert "--out" in absent.stdout


@pytest.mark.parametrize("command", ["results", "report"])
def test_packed_results_are_to_be_unpacked(command, site, tmp_path, cli):
    packed = tmp_path / "results.zip"
    packed.write_bytes(b"PK\xff\xfe")
    refused = cli("site", command, str(packed), str(site))
    assert refused.returncode == 2
    assert "results.zip is packed; unpack it into a folder" in refused.stderr


def test_where_no_site_is_given_and_none_is_here(tmp_path, cli, monkeypatch):
    """A first argument that is a site, where a run is expected, is told apart from a missing file."""
    monkeypatch.chdir(tmp_path)
    refused = cli("site", "report", "north")
    assert refused.returncode == 2
    assert "no site was given, and the current folder has no site.toml" in refused.stderr
