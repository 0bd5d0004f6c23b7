"""``capedjica study`` and ``capedjica plan STUDY`` as a coordinator meets them."""

import json
import os
import tomllib

import nibabel
import numpy as np
import pytest

from capedjica.coordinator.new_study import read_site, read_site_file
from capedjica.coordinator.planning.plan import plan_study
from capedjica.one_machine.local_run import site_of_folder
from capedjica.privacy.wording import round_up
from capedjica.securesum.identity import PublicIdentity
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study, write_study
from tests.cli.test_cli import run as run_process
from tests.support.drafts import card, draft
from tests.support.in_process import run_main
from tests.support.small_study import make_study
from tests.support.terminal import Terminal

NUMBERS = ["--title", "Rest", "--components", "3", "--features", "12", "--timepoints", "60", "--epsilon", "2"]
SITES = ["--site", f"{card('north')}:20", "--site", f"{card('south')}:30", "--site", f"{card('west')}:25"]


@pytest.fixture
def study(tmp_path):
    write_study(
        tmp_path / "study.toml", draft(site_2=0.5, privacy={"n_colluding": 1}, analysis={"max_iter": 7})
    )
    return str(tmp_path / "study.toml")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_main(arguments, monkeypatch, capsys)


# Plans of studies


def test_a_plan_of_a_study_has_its_own_numbers(study, run):
    numbers = json.loads(run("plan", study, "--json").stdout)
    assert numbers == json.loads(json.dumps(plan_study(Study.load(study)).as_dict()))
    assert [site["budget"] for site in numbers["sites"]] == [2.0, 0.5, 2.0, 2.0]
    shown = run("plan", study).stdout
    assert "Resting state" in shown
    for site in numbers["sites"]:
        assert (
            f"{site['name']} {site['subjects']} {round_up(site['budget'])} {round_up(site['epsilon'])}"
            in (" ".join(shown.split()))
        )


def test_flags_that_say_the_same_are_welcome(study, run):
    agreeing = [
        *["--sites", "4", "--subjects", "100", "--components", "4", "--features", "12", "--timepoints", "60"],
        *["--epsilon", "2", "--delta", "1e-5", "--colluding", "1", "--iterations", "7", "--mask", "uniform"],
        *["--method", "subject"],
    ]
    assert run("plan", study, *agreeing, "--json").stdout == run("plan", study, "--json").stdout
    assert run("plan", study, "--subjects", "20,30,25,25").returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sites", "5"], "--sites 5 contradicts the study, which has 4"),
        (["--subjects", "101"], "--subjects 101 contradicts the study, which has 20,30,25,25"),
        (
            ["--subjects", "30,20,25,25"],
            "--subjects 30,20,25,25 contradicts the study, which has 20,30,25,25",
        ),
        (["--components", "5"], "--components 5 contradicts the study, which has 4"),
        (["--features", "13"], "--features 13 contradicts the study, which has 12"),
        (["--timepoints", "61"], "--timepoints 61 contradicts the study, which has 60"),
        (["--image-shape", "3x4"], "--image-shape 3,4 contradicts the study, which has none"),
        (["--epsilon", "1"], "--epsilon 1.0 contradicts the study, which has 2.0"),
        (["--delta", "1e-6"], "--delta 1e-06 contradicts the study, which has 1e-05"),
        (["--colluding", "2"], "--colluding 2 contradicts the study, which has 1"),
        (["--iterations", "8"], "--iterations 8 contradicts the study, which has 7"),
        (["--mask", "paper"], "--masking paper contradicts the study, which has uniform"),
        (["--method", "paper"], "--method paper contradicts the study, which has subject"),
        (["--epsilon-per-iteration", "1"], "--epsilon-per-iteration cannot be combined with a study.toml"),
    ],
)
def test_flags_that_contradict_a_study_are_named(study, flags, message, run):
    result = run("plan", study, *flags)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_mechanism_has_a_plan(tmp_path, run):
    for mechanism in ("conventional", "local", "pooled", "none"):
        privacy = {"mechanism": mechanism} | ({"epsilon": None} if mechanism == "none" else {})
        path = tmp_path / f"{mechanism}.toml"
        write_study(path, draft(privacy=privacy))
        assert json.loads(run("plan", str(path), "--json").stdout)["setting"]["mechanism"] == mechanism
        assert "Releases" in run("plan", str(path)).stdout


def test_a_study_that_is_none(tmp_path, run):
    for command in (["plan"], ["study", "show"]):
        missing = run(*command, str(tmp_path / "none.toml"))
        assert missing.returncode == 2
        assert "cannot be read" in missing.stderr
        (tmp_path / "bad.toml").write_text("title = 3\n")
        bad = run(*command, str(tmp_path / "bad.toml"))
        assert bad.returncode == 2
        assert "3 problems" in bad.stderr
        assert "Traceback" not in bad.stderr


# show


def test_show_in_words_and_as_json(study):
    shown = run_process("study", "show", study)
    assert shown.returncode == 0
    facts = json.loads(run_process("study", "show", study, "--json").stdout)
    assert facts["hash"] in shown.stdout
    for site in facts["sites"]:
        assert site["fingerprint"] in shown.stdout


# new


def test_new_writes_a_study_once(tmp_path, run):
    out = tmp_path / "deep" / "s.toml"
    made = run_process("study", "new", str(out), *NUMBERS, *SITES, "--delta", "1e-6")
    assert made.returncode == 0
    study = Study.load(out)
    assert study.hash.hex() in made.stdout
    assert study.content.title == "Rest"
    assert [(site.name, site.subjects) for site in study.content.sites] == [
        ("north", 20),
        ("south", 30),
        ("west", 25),
    ]
    assert study.content.privacy.delta == 1e-6
    before = out.read_bytes()
    again = run("study", "new", str(out), *NUMBERS, *SITES)
    assert again.returncode == 2
    assert "already exists and is not overwritten" in again.stderr
    assert out.read_bytes() == before


def test_new_goes_to_this_folder_by_default(tmp_path, run):
    made = run("study", "new", *NUMBERS, *SITES)
    assert made.returncode == 0
    assert Study.load(tmp_path).content.features.n_features == 12
    assert "already exists" in run("study", "new", ".", *NUMBERS, *SITES).stderr


def test_new_with_an_image_needs_no_features(tmp_path, run):
    out = str(tmp_path / "s.toml")
    flags = [*NUMBERS[:4], *NUMBERS[6:], "--image-shape", "3x4"]
    assert run("study", "new", out, *flags, *SITES).returncode == 0
    assert Study.load(out).content.features.image_shape == (3, 4)


WITHOUT_FEATURES = [*NUMBERS[:4], *NUMBERS[6:]]


@pytest.fixture
def atlas(tmp_path_factory):
    """An atlas of eight regions, somewhere else."""
    labels = np.zeros((10, 10, 9), dtype=np.int16)
    labels[1:9, 1:9, 1:9] = 1 + np.arange(8)[:, np.newaxis, np.newaxis]
    path = tmp_path_factory.mktemp("atlases") / "regions.nii.gz"
    nibabel.save(nibabel.Nifti1Image(labels, np.diag([20.0, 20, 20, 1])), path)
    return path


def test_new_with_an_atlas_counts_its_regions_and_takes_a_copy(tmp_path, run, atlas):
    cleaning = ["--smoothing", "6", "--detrend", "--standardize", "--low-pass", "0.1", "--high-pass", "0.01"]
    flags = ["--atlas", str(atlas), "--confounds", "motion,wm_csf", "--space", "MNI152NLin6Asym", *cleaning]
    made = run("study", "new", "deep/study.toml", *WITHOUT_FEATURES, *SITES, *flags)
    assert made.returncode == 0, made.stderr
    assert "It needs deep/regions.nii.gz: share both files together." in made.stdout
    study = Study.load(tmp_path / "deep")
    assert study.hash.hex() in made.stdout
    assert study.content.features.n_features == 8
    table = study.content.features
    assert (table.kind, table.atlas) == ("atlas", "regions.nii.gz")
    assert (table.smoothing_fwhm, table.low_pass, table.high_pass) == (6.0, 0.1, 0.01)
    assert table.confounds == ("motion", "wm_csf")
    assert (tmp_path / "deep" / "regions.nii.gz").read_bytes() == atlas.read_bytes()
    shown = " ".join(run("study", "show", "deep").stdout.split())
    for fact in (
        "The features are the 8 regions of the atlas 'regions.nii.gz'.",
        "Scans must be in the template space MNI152NLin6Asym.",
        "each scan is smoothed (FWHM 6 mm), detrended, cleaned of fMRIPrep confounds by regression "
        "(motion, wm_csf), high-pass filtered (0.01 Hz), low-pass filtered ("
        "0.1 Hz), divided by its standard deviation, feature by feature, independently of all other scans.",
        f"'regions.nii.gz' has the SHA-256 {table.atlas_sha256}",
        "the mu of these sites add up: at two sites",
    ):
        assert fact in shown, fact
    assert json.loads(run("study", "show", "deep", "--json").stdout)["features"]["atlas"] == "regions.nii.gz"
    assert json.loads(run("plan", "deep/study.toml", "--json").stdout)["setting"]["n_features"] == 8


def test_new_with_voxels_of_the_template(tmp_path, run):
    assert run("study", "new", *WITHOUT_FEATURES, *SITES, "--voxel-size", "20").returncode == 0
    study = Study.load(tmp_path)
    assert study.content.features.n_features == study.features.n_features > 100
    shown = " ".join(run("study", "show", ".").stdout.split())
    assert "voxels of the MNI152 brain mask (20 mm)" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--atlas", "none.nii.gz"], "none.nii.gz cannot be read: No such file or directory"),
        (["--features", "12", "--low-pass", "0.1"], "features.low_pass is only for images"),
        (["--voxel-size", "-1"], "features.voxel_size"),
        (["--atlas", "{atlas}", "--features", "9"], "features.n_features is 9, but the atlas has 8 regions"),
        (["--atlas", "{atlas}", "--confounds", "motoin"], "features.confounds must be among motion"),
        (["--atlas", "{atlas}", "--voxel-size", "3"], "features.voxel_size is only for kind 'voxels'"),
        (
            ["--atlas", "{atlas}", "--image-shape", "2x4"],
            "features.image_shape is only allowed for kind 'columns'",
        ),
    ],
)
def test_features_that_cannot_be_are_refused_and_nothing_is_left(tmp_path, run, atlas, flags, message):
    given = [flag.format(atlas=atlas) for flag in flags]
    made = run("study", "new", *WITHOUT_FEATURES, *SITES, *given)
    assert made.returncode == 2
    assert message in made.stderr
    assert made.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_new_counts_the_scans_of_a_folder(tmp_path):
    home = SiteHome.create(tmp_path / "my site 2", "east", 1.0, 1.0, 1e-5, simulated=True)
    (home.folder / "data").mkdir()
    for number in range(7):
        np.save(home.folder / "data" / f"sub-{number}.npy", np.zeros((5, 2)))
    (home.folder / "data" / "notes.txt").write_text("")
    for text, subjects in {
        str(home.folder): 7,
        str(home.folder / "site.toml"): 7,
        f"{home.folder}:40": 40,
        f"{home.folder}, 40": 40,
    }.items():
        site = read_site(text, site_of_folder)
        assert (site.name, site.subjects, site.card) == ("east", subjects, home.card().card)


def test_new_reads_a_file_of_sites(tmp_path, run):
    listed = tmp_path / "sites.txt"
    listed.write_text(
        f"# who takes part\n{card('north')}:20  # the first\n\n{card('south')} 30\n{card('west')},25\n"
    )
    assert [(site.name, site.subjects) for site in read_site_file(listed, site_of_folder)] == [
        ("north", 20),
        ("south", 30),
        ("west", 25),
    ]
    out = str(tmp_path / "s.toml")
    both = run("study", "new", out, *NUMBERS, "--site-file", str(listed), "--site", f"{card('east')}:9")
    assert both.returncode == 0
    assert Study.load(out).contract.roster.names == ("east", "north", "south", "west")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "missing options: --title, --components, --features, --timepoints, --epsilon (for images: ",
        ),
        (NUMBERS[2:] + SITES, "missing options: --title"),
        (
            [*NUMBERS, "--site", "nobody:4"],
            "--site: site 'nobody:4' is neither a card nor a folder; expected",
        ),
        ([*NUMBERS, "--site", card("north")], "--site: site north: its card does not state the number"),
        ([*NUMBERS, "--site", "capedjica-site-1 x:4"], "--site: not a site card"),
        ([*NUMBERS, *SITES, "--site", f"{card('north')}:1"], "2 sites have the name 'north'"),
        (
            [*NUMBERS, *SITES, "--site", f"{card('x')}:0"],
            "sites[4].subjects: expected a whole number of at least 1",
        ),
        (
            [*NUMBERS, *SITES, "--components", "13"],
            "analysis.n_components must be at most n_features, 12; got 13",
        ),
        ([*NUMBERS, *SITES, "--image-shape", "3"], "--image-shape must be the height and width"),
        ([*NUMBERS, *SITES, "--title", " "], "title is empty; expected a short description"),
        ([*NUMBERS, *SITES, "--title", "\udcff"], "title must be one line"),
        ([*NUMBERS, *SITES, "--site-file", "none.txt"], "none.txt cannot be read"),
        (
            [*NUMBERS, *SITES, "--epsilon", "-1"],
            "privacy.epsilon: expected a number of at least 1e-09, got -1.0",
        ),
    ],
)
def test_what_is_wrong_with_a_new_study_is_said_and_nothing_is_written(tmp_path, arguments, message, run):
    result = run("study", "new", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


# Drafts, and sites that are added to them


@pytest.mark.parametrize("given", [0, 1])
def test_without_two_sites_a_study_is_a_draft(tmp_path, run, given):
    made = run("study", "new", *NUMBERS, *SITES[: 2 * given])
    assert made.returncode == 0
    assert f"It is a draft with {given} site{'s' * (given != 1)}; a study needs at least 2." in made.stdout
    assert "Next: capedjica study add-site CARD... --study study.toml" in made.stdout
    for command in (["study", "show"], ["plan"]):
        refused = run(*command, "study.toml")
        assert refused.returncode == 2
        assert (
            f"sites: expected at least 2 sites, got {given}; add one with `capedjica study add-site`"
            in refused.stderr
        )
        assert refused.stderr.count("\n") == 1
    names = ("north", "south", "west")[given:]
    for number, name in enumerate(names, start=given + 1):
        added = run("study", "add-site", card(name), "--subjects", f"{20 + number}")
        assert added.returncode == 0, added.stderr
        assert f"Added site {name} with {20 + number} participants to study.toml." in added.stdout
        assert PublicIdentity.from_card(card(name)).fingerprint in added.stdout
        assert ("Not ready yet: sites: expected at least 2 sites" in added.stdout) == (number < 2)
    study = Study.load(tmp_path)
    assert study.contract.roster.names == ("north", "south", "west")
    assert study.hash.hex() in added.stdout
    assert os.listdir(tmp_path) == ["study.toml"]


def test_a_draft_is_checked_as_far_as_it_goes(tmp_path, run):
    result = run("study", "new", *NUMBERS, "--components", "13")
    assert result.returncode == 2
    assert "analysis.n_components must be at most n_features, 12; got 13" in result.stderr
    assert os.listdir(tmp_path) == []


def test_sites_are_added_by_the_files_of_their_cards(tmp_path, run):
    run("study", "new", "deep/study.toml", *NUMBERS)
    for name in ("north", "south"):
        run("site", "init", name)
        added = run("study", "add-site", f"{name}/{name}.card", "--subjects", "9", "--study", "deep")
        assert added.returncode == 0, added.stderr
        assert SiteHome.load(tmp_path / name).card().fingerprint in added.stdout
    own = run("study", "add-site", card("west"), "--subjects", "9", "--epsilon", "0.5", "--study", "deep")
    assert own.returncode == 0
    assert Study.load(tmp_path / "deep").contract.epsilon == (2.0, 2.0, 0.5)
    again = run("study", "new", *NUMBERS, "--site", "north/north.card:9", "--site", f"{card('west')}:3")
    assert again.returncode == 0, again.stderr
    assert Study.load(tmp_path).contract.roster.names == ("north", "west")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([card("north"), "--subjects", "5"], "already has a site north; to replace its card, delete"),
        (
            [card("elsewhere", sum(map(ord, "north"))), "--subjects", "5"],
            "study.toml already has the key of site elsewhere, under the name north",
        ),
        (["capedjica-site-1 east", "--subjects", "5"], "not a site card: expected"),
        (["nowhere.card", "--subjects", "5"], "not a site card: expected"),
        (["study.toml", "--subjects", "5"], "study.toml is not a site card; expected one line"),
        ([".", "--subjects", "5"], ". cannot be read: Is a directory"),
        (
            [card("east"), "--subjects", "0"],
            "sites[4].subjects: expected a whole number of at least 1, got 0",
        ),
        ([card("east"), "--subjects", "-3"], "got -3"),
        (
            [card("east"), "--subjects", "5", "--epsilon", "-1"],
            "sites[4].epsilon: expected a number of at least",
        ),
        ([card("east"), "--subjects", "5", "--epsilon", "nan"], "epsilon"),
        ([card("east"), "--subjects", "5", "--study", "none.toml"], "none.toml cannot be read"),
    ],
)
def test_a_site_that_cannot_be_added_changes_nothing(tmp_path, run, arguments, message):
    run("study", "new", *NUMBERS, *SITES)
    before = (tmp_path / "study.toml").read_bytes()
    result = run("study", "add-site", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "study.toml").read_bytes() == before
    assert os.listdir(tmp_path) == ["study.toml"]


def test_nothing_is_added_to_a_sealed_study(tmp_path, run):
    run("study", "new", *NUMBERS, *SITES)
    before = (tmp_path / "study.toml").read_bytes()
    (tmp_path / "federation").mkdir()
    (tmp_path / "federation" / "sealed.json").write_text("{}")
    result = run("study", "add-site", card("east"), "--subjects", "5")
    assert result.returncode == 2
    assert "study.toml was sealed (federation/sealed.json) and cannot be changed" in result.stderr
    assert (tmp_path / "study.toml").read_bytes() == before


def test_all_bad_sites_are_listed(tmp_path, run):
    result = run("study", "new", *NUMBERS, "--site", "a:1", "--site", "b:1")
    assert "--site: 2 problems" in result.stderr
    (tmp_path / "sites.txt").write_bytes(b"\xff")
    result = run("study", "new", *NUMBERS, "--site-file", "sites.txt")
    assert "sites.txt is not a text file" in result.stderr


def test_on_a_terminal_what_is_missing_is_asked_for(tmp_path):
    terminal = Terminal("study", "new", "--components", "3", "--epsilon", "2", cwd=tmp_path)
    terminal.answer("Title of the study", 'Rest "at ease"')
    terminal.answer("Number of features", "many")
    terminal.answer("Number of features", "12")
    terminal.answer("time points", "60")
    terminal.answer("Site 1", f"{card('north')}:20")
    terminal.answer("Site 2", "nobody")
    terminal.expect("neither a card nor a folder")
    terminal.answer("Site 2", f"{card('south')}:30")
    terminal.answer("Site 3", f"{card('west')}:25")
    terminal.answer("Site 4", "")
    terminal.expect("Next: capedjica study show study.toml")
    assert terminal.close() == 0
    study = Study.load(tmp_path)
    assert study.content.title == 'Rest "at ease"'
    assert study.contract.subjects == (20, 30, 25)
    assert (study.content.networks.n_components, study.content.privacy.epsilon) == (3, 2.0)


def test_on_a_terminal_no_sites_are_an_answer(tmp_path):
    terminal = Terminal("study", "new", *NUMBERS, cwd=tmp_path)
    terminal.answer("Site 1", "")
    terminal.expect("It is a draft with 0 sites; a study needs at least 2.")
    assert terminal.close() == 0
    assert "sites" not in tomllib.loads((tmp_path / "study.toml").read_text())


def test_on_a_terminal_nothing_is_asked_that_was_given(tmp_path):
    terminal = Terminal("study", "new", *NUMBERS, *SITES, cwd=tmp_path)
    terminal.expect("Next: capedjica study show study.toml")
    assert "?" not in terminal.text
    assert terminal.close() == 0


# Templates


@pytest.fixture
def known(tmp_path_factory, atlas):
    """Maps of three networks with their names, in the space of the atlas, somewhere else."""
    folder = tmp_path_factory.mktemp("known")
    maps = np.zeros((10, 10, 9, 3), dtype=np.float32)
    maps[1:4, 1:9, 1:9, 0], maps[3:7, 1:9, 1:9, 1], maps[6:9, 1:9, 1:9, 2] = 3, 2, -5
    nibabel.save(nibabel.Nifti1Image(maps, np.diag([20.0, 20, 20, 1])), folder / "networks.nii.gz")
    (folder / "networks.txt").write_text("visual\nmotor\ndefault\n")
    return folder / "networks.nii.gz"


WITHOUT_COMPONENTS = [*NUMBERS[:2], *NUMBERS[6:]]
VOUCHED = ["--method", "template", "--template-origin", "public"]


def test_new_with_a_template_takes_the_systems_of_its_table(tmp_path, run, atlas, known):
    names = known.with_name("systems.tsv")
    names.write_text("name\tsystem\nV1\tvisual\nV2\tvisual\nM1\tmotor\n")
    flags = ["--atlas", str(atlas), "--template", str(known), *VOUCHED, "--template-names", str(names)]
    made = run("study", "new", "deep/study.toml", *WITHOUT_COMPONENTS, *SITES, *flags)
    assert made.returncode == 0, made.stderr
    (table,) = Study.load(tmp_path / "deep").content.analyses
    assert (table.template_names, table.template_systems) == (
        ("V1", "V2", "M1"),
        ("visual", "visual", "motor"),
    )


def test_new_with_a_template_makes_its_file_and_counts_its_networks(tmp_path, run, atlas, known):
    flags = ["--atlas", str(atlas), "--template", str(known), *VOUCHED]
    made = run("study", "new", "deep/study.toml", *WITHOUT_COMPONENTS, *SITES, *flags)
    assert made.returncode == 0, made.stderr
    assert "It needs deep/template.npy: share both files together." in made.stdout
    study = Study.load(tmp_path / "deep")
    (table,) = study.content.analyses
    assert (table.method, table.n_components, table.template_source) == ("template", 3, "networks.nii.gz")
    assert table.template_names == ("visual", "motor", "default")
    maps = np.load(tmp_path / "deep" / "template.npy")
    assert maps.dtype == np.float64
    np.testing.assert_allclose(maps[2], [0, 0, 0, 0, 0, -1, -1, -1])
    shown = " ".join(run("study", "show", "deep").stdout.split())
    for fact in ("taken from a template", "Its networks: visual, motor, default.", "vouches that"):
        assert fact in shown
    assert "difference from the template" in run("plan", "deep/study.toml").stdout
    predicted = " ".join(run("plan", "deep/study.toml", "--predict").stdout.split())
    assert "the template's maps have a correlation of 0.75 with the true ones" in predicted


def test_new_with_an_array_needs_no_features(tmp_path, run):
    np.save("known.npy", np.eye(3, 12) + 0.1)
    made = run("study", "new", *WITHOUT_COMPONENTS, *SITES, "--template", "known.npy", *VOUCHED)
    assert made.returncode == 0, made.stderr
    assert Study.load(tmp_path).content.features.n_features == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--template", "{known}"], "--template needs --method template or guided; got no --method"),
        (["--template", "{known}", "--method", "spatial"], "got --method spatial"),
        (["--method", "template"], "--method template needs --template"),
        (["--method", "best"], "--method must be one of subject, paper, template, guided, spatial"),
        (["--template-origin", "public"], "--template-origin is given, but no --template"),
        (["--template", "{known}", *VOUCHED[:2]], "--template-origin is missing; expected"),
        (["--template", "{known}", *VOUCHED[:3], "mine"], "--template-origin must be one of public"),
        (["--template", "{known}", *VOUCHED, "--components", "4"], "the template has 3 networks"),
        (["--template", "{known}", *VOUCHED, "--template-names", "none.tsv"], "none.tsv cannot be read"),
        (["--template", "none.nii", *VOUCHED], "template none.nii does not exist"),
        (["--template", "{known}", *VOUCHED, "--epsilon", "-1"], "epsilon"),
    ],
)
def test_templates_that_cannot_be_are_refused_and_nothing_is_left(
    tmp_path, run, atlas, known, flags, message
):
    given = [flag.format(known=known) for flag in flags]
    made = run("study", "new", *WITHOUT_COMPONENTS, *SITES, "--atlas", str(atlas), *given)
    assert made.returncode == 2
    assert message in made.stderr
    assert os.listdir(tmp_path) == []


def test_a_template_never_goes_over_another_file(tmp_path, run, atlas, known):
    (tmp_path / "template.npy").write_bytes(b"mine")
    flags = ["--atlas", str(atlas), "--template", str(known), *VOUCHED]
    made = run("study", "new", *WITHOUT_COMPONENTS, *SITES, *flags)
    assert "exists with other content and is not overwritten" in made.stderr
    assert os.listdir(tmp_path) == ["template.npy"]


def test_sites_of_a_study_and_of_a_draft_are_listed(tmp_path, cli):
    study = make_study(tmp_path)
    facts = json.loads(cli("study", "sites", str(tmp_path), "--json").stdout)
    assert [one["name"] for one in facts["sites"]] == ["s1", "s2", "s3", "s4"]
    assert facts["hash"] == study.hash.hex()
    assert study.contract.roster.sites[0].fingerprint in cli("study", "sites", str(tmp_path)).stdout
    text = (tmp_path / "study.toml").read_text()
    (tmp_path / "study.toml").write_text(text[: text.index("[[sites]]")])
    draft = json.loads(cli("study", "sites", str(tmp_path), "--json").stdout)
    assert draft["sites"] == []
    assert draft["hash"] is None
    assert draft["problems"]
