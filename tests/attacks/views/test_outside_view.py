"""Nothing but the paid releases depends on one subject's data (:mod:`tests.attacks.views.outside_view`).

For every way to run an analysis, one subject is replaced in every way in which scans differ or go wrong, and
all that is seen from outside stays as it was. What is known to fail is in `KNOWN`, by the way and the
neighbour, with its reason; a test of it that passes is an error, so that the list stays true.
"""

import contextlib
import logging
import os
import pickle
import warnings
from functools import partial

import msgspec
import nibabel
import numpy as np
import pytest
from nilearn.maskers import NiftiMasker

from capedjica import CapeDJICA, CapePCA, private_mean
from capedjica.algorithms.ica.scan_length import TYPICAL_SCAN, longest_scan
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.site import answering as site_module
from capedjica.one_machine import local_run
from capedjica.one_machine.local_run import find_sites
from capedjica.site import run
from capedjica.site.approval.participation import approve
from capedjica.site.participants.cohort import enrol
from capedjica.study.study_file import Study, write_study
from tests.attacks.views.outside_view import Trial, observe
from tests.support.drafts import with_ica
from tests.support.scanner import INSIDE, SHAPE, image, save
from tests.support.small_scans import atlas_study, make_scans
from tests.support.small_study import make_study

T, D, R = 24, 4, 2
SITES, PEOPLE = 3, 3


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


# Neighbours: what becomes of the scan (time, features) of one subject


def with_nan(scan):
    changed = scan.astype(np.float64)
    changed[len(scan) // 2, 1] = np.nan
    return changed


def constant_feature(scan):
    changed = scan.copy()
    changed[:, 0] = 3.0
    return changed


SCANS = {
    "NaN somewhere": with_nan,
    "all NaN": lambda scan: np.full(scan.shape, np.nan),
    "infinity": lambda scan: np.full(scan.shape, -np.inf),
    "other values": lambda scan: numbers(99, *scan.shape),
    "the same again": lambda scan: np.repeat(scan[:1], len(scan), axis=0),
    "constant feature": constant_feature,
    "scale 1e-300": lambda scan: scan.astype(np.float64) * 1e-300,
    "scale 1e300": lambda scan: scan.astype(np.float64) * 1e300,
    "single precision": lambda scan: scan.astype(np.float32) * np.float32(1e38),
    "whole numbers": lambda scan: np.rint(100 * scan).astype(np.int16),
}
LENGTHS = {
    "one time point": lambda scan: scan[:1],
    "no time points": lambda scan: scan[:0],
    "half as long again": lambda scan: numbers(98, 3 * len(scan) // 2, scan.shape[1]),
    "much longer": lambda scan: numbers(97, 40 * len(scan), scan.shape[1]),
    "longer than takes part": lambda scan: numbers(95, longest_scan(TYPICAL_SCAN) + 7, scan.shape[1]),
}
WIDTHS = {"another number of features": lambda scan: numbers(96, len(scan), scan.shape[1] + 1)}

# What is known to be seen from outside, by the way to run and the neighbour: the reason.
_WIDTH = "vectors of another width are refused; scans are not"
ESTIMATED = {f"djica-{name}": name for name in ("subject", "paper", "template", "guided", "spatial")}
KNOWN = {("mean", "another number of features"): _WIDTH}
_UNAPPROVED = "a site does not begin a study with other files than it approved"
_NOBODY_LEFT = "a site does not begin a study when none of its people can be used"
_NOT_ENROLLED = "a site that enrolled nobody takes part with scans that can all be used, or not at all"
KNOWN |= {
    ("regression", "no label"): "a label that is neither 0 nor 1 is refused, whoever's it is",
}


def cases(way, *neighbours, usual=None):
    """Return a parameter for each neighbour, marked if it is known to be seen, or not among the usual."""
    return [case(way, name, usual) for group in neighbours for name in group]


def case(way, name, usual=None, *before):
    marks = []
    if (way, name) in KNOWN:
        marks.append(pytest.mark.xfail(reason=KNOWN[way, name], raises=Seen))
    if usual is not None and name not in usual:
        marks.append(pytest.mark.full)
    return pytest.param(*before, name, marks=marks)


class Seen(AssertionError):
    """Something outside depends on one subject."""


def expect_alike(first, second):
    found = first.differs_from(second)
    if found:
        telling = {name: (first.seen.get(name), second.seen.get(name)) for name in found}
        raise Seen("; ".join(f"{name}: {str(telling[name])[:500]}" for name in found))


def replaced(sites, place, change):
    """Return the sites with one subject changed."""
    where, number = place
    return [
        [change(one) if (s, m) == (where, number) else one for m, one in enumerate(site)]
        for s, site in enumerate(sites)
    ]


FIRST, LAST = (0, 0), (SITES - 1, PEOPLE - 1)


# Estimators


@pytest.fixture(scope="module")
def remembered():
    """First runs, by what they are: every neighbour is compared with the same one."""
    return {}


def compare(remembered, key, act, original, neighbour):
    if key not in remembered:
        remembered[key] = observe(lambda: act(original))
    first = remembered[key]
    assert first.seen["outcome"] == "done", first.seen["outcome"]
    assert len(first.means) > 0
    expect_alike(first, observe(lambda: act(neighbour), first))


def scans():
    return [[numbers(10 * s + m, T, D) for m in range(PEOPLE)] for s in range(SITES)]


def fit_djica(method, mechanism, report=False):
    def act(sites):
        options = {"method": method, "mechanism": mechanism, "on_bad": "zero"}
        if method in ("template", "guided"):
            options |= {"template": numbers(3, R, D), "template_origin": "public"}
        if method not in ("template", "spatial"):
            options["max_iter"] = 2
        estimator = CapeDJICA(R, epsilon=50.0, **options).fit(sites)
        shown = {
            name: getattr(estimator, name)
            for name in ("privacy_", "components_", "mixing_", "unmixing_", "stability_", "n_iter_")
        }
        shown["statement"] = str(estimator.privacy_)
        return shown | ({"report": str(estimator.generate_report())} if report else {})

    return act


USUAL = ("NaN somewhere", "no time points", "much longer")


def estimator_cases():
    for way in ESTIMATED:
        for mechanism in ("cape", "conventional", "pooled", "local"):
            for name in CHANGES:
                all_of_them = mechanism == "cape" and way in ("djica-subject", "djica-paper")
                yield case(way, name, None if all_of_them else USUAL, way, mechanism)


CHANGES = SCANS | LENGTHS | WIDTHS


@pytest.mark.parametrize(("way", "mechanism", "name"), list(estimator_cases()))
def test_networks(remembered, way, mechanism, name):
    """Of the first subject of all, by whom an estimator would judge the others."""
    neighbour = replaced(scans(), FIRST, CHANGES[name])
    compare(remembered, (way, mechanism), fit_djica(ESTIMATED[way], mechanism), scans(), neighbour)


def report_cases():
    return [case(way, name, ("NaN somewhere", "all NaN"), way) for way in ESTIMATED for name in CHANGES]


@pytest.mark.parametrize(("way", "name"), report_cases())
def test_reports(remembered, way, name):
    act = fit_djica(ESTIMATED[way], "cape", report=True)
    compare(remembered, (way, "report"), act, scans(), replaced(scans(), FIRST, CHANGES[name]))


def fit_pca(sites):
    estimator = CapePCA(R, epsilon=5.0, on_bad="zero").fit(sites)
    return {"privacy_": estimator.privacy_, "components_": estimator.components_}


@pytest.mark.parametrize("name", cases("pca", SCANS, LENGTHS, WIDTHS))
def test_principal_components(remembered, name):
    compare(remembered, "pca", fit_pca, scans(), replaced(scans(), FIRST, CHANGES[name]))


# One row per person

ROWS = {
    "NaN somewhere": lambda row: np.where(np.arange(len(row)) == 1, np.nan, row),
    "all NaN": lambda row: np.full(len(row), np.nan),
    "infinity": lambda row: np.full(len(row), np.inf),
    "other values": lambda row: numbers(95, len(row)),
    "zeros": lambda row: np.zeros(len(row)),
    "scale 1e-300": lambda row: row * 1e-300,
    "scale 1e300": lambda row: row * 1e300,
    "whole numbers": lambda row: np.rint(100 * row).astype(int),
}
ROW_WIDTHS = {"another number of features": lambda row: np.append(row, 1.0)}


def rows():
    return [[numbers(10 * s + m, 2) for m in range(PEOPLE)] for s in range(SITES)]


def take_mean(sites):
    return vars(private_mean(sites, clip=1.0, epsilon=5.0))


def fitted(estimator, *names):
    return {name: getattr(estimator, name) for name in ("privacy_", *names)}


def fit_histogram(sites):
    edges = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0]]
    return fitted(
        PrivateHistogram(edges, epsilon=5.0).fit(sites), "counts_", "noise_", "shares_", "density_", "edges_"
    )


def fit_kmeans(sites):
    model = PrivateKMeans(n_clusters=2, radius=1.5, max_iter=3, random_state=0, epsilon=5.0)
    return fitted(model.fit(sites), "cluster_centers_", "shares_")


def fit_regression(sites):
    """The last number of a row is its label."""
    labels = [[row[-1] for row in site] for site in sites]
    features = [[row[:-1] for row in site] for site in sites]
    model = PrivateLogisticRegression(feature_bound=1.0, max_iter=3, epsilon=5.0)
    return fitted(model.fit(features, labels), "coef_", "intercept_")


@pytest.mark.parametrize("name", cases("mean", ROWS, ROW_WIDTHS))
def test_means(remembered, name):
    neighbour = replaced(rows(), LAST, (ROWS | ROW_WIDTHS)[name])
    compare(remembered, "mean", take_mean, rows(), neighbour)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("fit", [fit_histogram, fit_kmeans], ids=["histogram", "kmeans"])
def test_histograms_and_clusters(remembered, fit, name):
    compare(remembered, fit.__name__, fit, rows(), replaced(rows(), FIRST, ROWS[name]))


LABELS = {"other label": 1.0, "no label": np.nan}


@pytest.mark.parametrize("name", cases("regression", ROWS, LABELS))
def test_regressions(remembered, name):
    labelled = [[np.append(row, 0.0) for row in site] for site in rows()]

    def change(row):
        if name in LABELS:
            return np.append(row[:-1], LABELS[name])
        return np.append(ROWS[name](row[:-1]), row[-1])

    compare(remembered, "regression", fit_regression, labelled, replaced(labelled, FIRST, change))


# Studies


def saved(change):
    return lambda path: np.save(path, change(np.load(path)))


def cut_off(path):
    path.write_bytes(path.read_bytes()[:200])


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_dead_link(path):
    path.unlink()
    path.symlink_to("nowhere")


def not_to_be_read(path):
    path.chmod(0)


def objects(path):
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.array([[{}]]), allow_pickle=True)


FILES = {f"scan: {name}": saved(change) for name, change in (SCANS | LENGTHS | WIDTHS).items()}
FILES |= {
    "damaged": lambda path: path.write_bytes(b"damaged"),
    "cut off": cut_off,
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "a folder": a_folder,
    "a dead link": a_dead_link,
    "a pickle": lambda path: path.write_bytes(pickle.dumps({})),
    "objects": objects,
    "one dimension": lambda path: np.save(path, np.zeros(5)),
}
if os.geteuid():
    FILES["not to be read"] = not_to_be_read
USUAL_FILES = (
    *(f"scan: {name}" for name in ("NaN somewhere", "no time points", "much longer")),
    "scan: another number of features",
    "damaged",
    "deleted",
)
# Files that are other ones, and files by which people take part or not.
KNOWN |= {("unapproved", name): _UNAPPROVED for name in FILES}
USABLE = {
    f"scan: {name}"
    for name in (
        "other values",
        "constant feature",
        "scale 1e-300",
        "scale 1e300",
        "single precision",
        "whole numbers",
        "half as long again",
        "much longer",
        "longer than takes part",
    )
}
KNOWN |= {("not enrolled", name): _NOT_ENROLLED for name in FILES.keys() - USABLE}
KNOWN |= {("alone", name): _NOBODY_LEFT for name in FILES.keys() - USABLE}

VICTIM = "sites/s1/data/sub-00.npy"


def enrolled(template, study):
    for home in find_sites(study, template / "sites"):
        enrol(home, home.settings.data, study)


def approved(change=None):
    """Return what changes a file, and then lets every site approve the study with the files as they are."""

    def prepare(path):
        if change is not None:
            change(path)
        folder = path.parents[3]
        study = Study.load(folder)
        for home in find_sites(study, folder / "sites"):
            # A site that cannot approve it does not take part: that is seen in the run.
            with contextlib.suppress(InputError):
                approve(home, study)

    return prepare


def make_trial(root, change=lambda folder, content: content, **privacy):
    """A study of tables, with its content changed, whose sites have enrolled their people."""
    template, place = root / "template", root / "place"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        content = make_study(template, simulated=False, iterations=2, **privacy).content
        (template / "study.toml").unlink()
        write_study(template / "study.toml", change(template, content))
        enrolled(template, Study.load(template))
    return Trial(template, place, VICTIM)


def by_the_paper(folder, content):
    return with_ica(content, method="paper")


def victim_alone(folder, content):
    """Leave nobody but the victim at its site."""
    for path in (folder / VICTIM).parent.iterdir():
        if path != folder / VICTIM:
            path.unlink()
    first = msgspec.structs.replace(content.sites[0], subjects=1)
    return msgspec.structs.replace(content, sites=(first, *content.sites[1:]))


def completed(view):
    assert view.seen["outcome"] == "done"
    assert [code for code, _, _ in view.seen["terminal"]][-2:] == [0, 0], view.seen["terminal"]
    assert {"file report.html", "file privacy.json", "file results.zip/maps.npy", "file log.txt"} <= set(
        view.seen
    )
    return view


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return make_trial(tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def first_run(trial):
    return completed(trial.run(approved()))


@pytest.mark.parametrize("name", cases("study", FILES, usual=USUAL_FILES))
def test_studies(trial, first_run, name):
    """The file was changed, damaged or lost between enrolment and approval."""
    expect_alike(first_run, trial.run(approved(FILES[name]), first_run))


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_studies_whose_masks_are_made_ahead(trial, monkeypatch, name):
    """As between machines: blocks are made in another thread, so the order of letters is left to chance."""
    monkeypatch.setattr(local_run, "conduct", partial(local_run.conduct, ahead=True))
    monkeypatch.setattr(Aggregator, "_first_slots", lambda self, slots: slots[:1])
    first = completed(trial.run(approved()))
    second = trial.run(approved(FILES[name]), first)
    assert set(first.differs_from(second)) <= {"wire"}


@pytest.fixture(scope="module")
def resumed_run(trial):
    return completed(trial.run(approved(), midway=lambda path: None))


@pytest.mark.parametrize("name", cases("resumed", FILES, usual=("damaged", "deleted")))
def test_studies_that_are_resumed(trial, resumed_run, name):
    """The file was changed, damaged or lost while the study ran."""
    assert [code for code, _, _ in resumed_run.seen["terminal"]] == [130, 0, 0]
    expect_alike(resumed_run, trial.run(approved(), resumed_run, midway=FILES[name]))


@pytest.mark.parametrize("name", cases("unapproved", FILES, usual=("scan: other values", "deleted")))
def test_files_that_change_after_an_approval(trial, first_run, name):
    """Before the first release: the approval is for files as they were."""

    def change(path):
        approved()(path)
        FILES[name](path)

    expect_alike(first_run, trial.run(change, first_run))


@pytest.fixture(scope="module")
def not_enrolled(tmp_path_factory):
    root = tmp_path_factory.mktemp("nobody")
    make_study(root / "template", iterations=2)
    trial = Trial(root / "template", root / "place", VICTIM)
    return trial, completed(trial.run())


@pytest.mark.parametrize("name", cases("not enrolled", FILES, usual=("scan: all NaN", "deleted")))
def test_sites_that_enrolled_nobody(not_enrolled, name):
    trial, first = not_enrolled
    expect_alike(first, trial.run(FILES[name], first))


OTHERS = {
    "conventional": {"mechanism": "conventional"},
    "local": {"mechanism": "local"},
    "paper": {"change": by_the_paper},
}


@pytest.fixture(scope="module", params=OTHERS)
def other(request, tmp_path_factory):
    trial = make_trial(tmp_path_factory.mktemp(request.param), **OTHERS[request.param])
    return request.param, trial, completed(trial.run(approved()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    trial = make_trial(tmp_path_factory.mktemp("alone"), victim_alone)
    return trial, completed(trial.run(approved()))


@pytest.mark.full
@pytest.mark.parametrize("name", cases("alone", FILES))
def test_sites_with_one_person(alone, name):
    trial, first = alone
    expect_alike(first, trial.run(approved(FILES[name]), first))


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_studies_of_other_kinds(other, name):
    _, trial, first = other
    expect_alike(first, trial.run(approved(FILES[name]), first))


# Images

VOLUMES = 20


def brain(seed, n_volumes=VOLUMES):
    """A person in the scanner: volumes of noise around a thousand."""
    volumes = np.random.default_rng(seed).standard_normal((*SHAPE, n_volumes))
    return (1000 + 10 * volumes).astype(np.float32)


def imaged(change):
    """Return what replaces an image by a changed one, under the same name."""

    def replace(path):
        volumes = np.asarray(nibabel.load(path).dataobj, dtype=np.float32).copy()
        save(path, change(volumes))

    return replace


def volume_of_nan(volumes):
    volumes[..., 3] = np.nan
    return volumes


IMAGES = {
    "NaN somewhere": imaged(volume_of_nan),
    "all NaN": imaged(lambda volumes: np.full_like(volumes, np.nan)),
    "other values": imaged(lambda volumes: brain(94)),
    "constant": imaged(lambda volumes: np.ones_like(volumes)),
    "one volume": imaged(lambda volumes: volumes[..., :1]),
    "three dimensions": imaged(lambda volumes: volumes[..., 0]),
    "much longer": imaged(lambda volumes: brain(93, 5 * VOLUMES)),
    "another grid": imaged(lambda volumes: volumes[1:, :-1]),
    "scale 1e30": imaged(lambda volumes: volumes * np.float32(1e30)),
    "damaged": FILES["damaged"],
    "cut off": cut_off,
    "empty": FILES["empty"],
    "deleted": FILES["deleted"],
    "a folder": a_folder,
}
EXTRACTORS = {
    "images-mask": lambda: {"mask_img": image(INSIDE.astype(np.uint8))},
    "images-masker": lambda: {"masker": NiftiMasker(image(INSIDE.astype(np.uint8)), standardize=None)},
}


KNOWN |= {("images-masker", "another grid"): "nilearn's own masker warns that it resamples an image"}


def image_cases():
    return [case(way, name, None, way) for way in EXTRACTORS for name in IMAGES]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("way", "name"), image_cases())
def test_networks_of_images(tmp_path, way, name):
    """Of paths."""
    paths = [
        [save(tmp_path / f"{s}-{m}.nii", brain(10 * s + m)) for m in range(PEOPLE)] for s in range(SITES)
    ]

    def act():
        options = {"max_iter": 2, "on_bad": "zero", **EXTRACTORS[way]()}
        estimator = CapeDJICA(R, epsilon=50.0, **options).fit(paths)
        return fitted(estimator, "components_", "n_iter_") | {"image": estimator.components_img_.get_fdata()}

    first = observe(act)
    assert first.seen["outcome"] == "done", first.seen["outcome"]
    IMAGES[name](paths[0][0])
    expect_alike(first, observe(act, first))


@pytest.fixture(scope="module")
def image_trial(tmp_path_factory):
    """A study of the regions of an atlas, on derivatives as fMRIPrep leaves them; people are enrolled."""
    root = tmp_path_factory.mktemp("derivatives")
    template = root / "template"
    study = atlas_study(make_scans(template))
    (template / "study.toml").unlink()
    (template / "atlas.toml").rename(template / "study.toml")
    enrolled(template, study)
    victim = sorted((template / "sites").rglob("*_desc-preproc_bold.nii.gz"))[0]
    trial = Trial(template, root / "place", str(victim.relative_to(template)))
    return trial, completed(trial.run())


@pytest.mark.full
@pytest.mark.parametrize("name", cases("image study", IMAGES))
def test_studies_of_images(image_trial, name):
    trial, first = image_trial
    expect_alike(first, trial.run(IMAGES[name], first))


# The comparison has teeth


def test_the_means_are_what_is_handed_over():
    """Two runs of the same data look different, unless the second is handed the means of the first."""
    act = fit_djica("paper", "cape")
    first = observe(lambda: act(scans()))
    alone, handed = (observe(lambda: act(scans()), of) for of in (None, first))
    assert {"components_", "wire"} <= set(first.differs_from(alone))
    assert first.differs_from(handed) == []
    answers = [letter for letter in first.seen["wire"][0] if letter[4][0] == "Answer"]
    assert len(answers) == SITES * len(first.means)


def mean_length(estimator, sites, *others, plain=CapeDJICA._fit_private):
    """Take the length of a scan from the data."""
    lengths = [len(subject) for site in sites.values() for subject in site]
    planned, estimator.scan_length = estimator.scan_length, round(np.mean(lengths))
    plain(estimator, sites, *others)
    estimator.scan_length = planned


def leaky_sum(vectors, plan, site, enrolled, plain=site_module.sum_subjects):
    total, n_zero = plain(vectors, plan, site, enrolled)
    if n_zero:
        raise ProtocolError("somebody cannot be used")
    return total, n_zero


def leaky_status(site, plain=site_module.Site._present_status):
    return msgspec.structs.replace(plain(site), spent=plain(site).spent + 1e-9 * site.n_zero)


def warning_sum(vectors, plan, site, enrolled, plain=site_module.sum_subjects):
    total, n_zero = plain(vectors, plan, site, enrolled)
    if n_zero:
        warnings.warn("somebody cannot be used", stacklevel=2)
    return total, n_zero


def logging_sum(vectors, plan, site, enrolled, plain=site_module.sum_subjects):
    total, n_zero = plain(vectors, plan, site, enrolled)
    logging.getLogger("capedjica.run").warning("%d cannot be used", n_zero)
    return total, n_zero


LEAKS = {
    "scan length": (CapeDJICA, "_fit_private", mean_length, "much longer", "releases"),
    "refusal": (site_module, "sum_subjects", leaky_sum, "all NaN", "refusals"),
    "status": (site_module.Site, "_present_status", leaky_status, "all NaN", "wire"),
    "warning": (site_module, "sum_subjects", warning_sum, "all NaN", "warnings"),
    "log": (site_module, "sum_subjects", logging_sum, "all NaN", "log"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_of_an_estimator_is_seen(monkeypatch, leak):
    owner, name, leaky, neighbour, where = LEAKS[leak]
    monkeypatch.setattr(owner, name, leaky)
    act = fit_djica("subject", "cape")
    first = observe(lambda: act(scans()))
    second = observe(lambda: act(replaced(scans(), FIRST, CHANGES[neighbour])), first)
    assert where in first.differs_from(second)


def careless(site, people):
    """Tell the aggregator's log and the terminal what is the site's own business."""
    logging.getLogger("capedjica.run").info("%d scans cannot be read", people.n_unreadable)
    print(f"{people.n_unreadable} scans cannot be read")


def test_leaks_of_a_study_are_seen(trial, monkeypatch):
    monkeypatch.setattr(run, "_log_unreadable", careless)
    first = completed(trial.run(approved()))
    second = trial.run(approved(FILES["damaged"]), first)
    assert first.differs_from(second) == ["file log.txt", "terminal"]
