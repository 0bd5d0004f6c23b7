"""``study.toml``: what is agreed on is read back as written, hashed value by value, and refused in words."""

import itertools
import os
import tomllib

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.data import FeatureTable
from capedjica.errors import InputError
from capedjica.mechanisms.release import MAX_BLOCK_WORDS
from capedjica.study.analyses import IcaTable
from capedjica.study.study_file import (
    PrivacyTable,
    SiteTable,
    Study,
    StudyFile,
    changes,
    to_content,
    write_study,
)
from capedjica.tools.toml import toml_value
from tests.support.drafts import card, draft, plain, sites

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
titles = st.text(st.characters().filter(str.isprintable), min_size=1, max_size=500).filter(str.strip)


def toml(table):
    """Plain TOML of a study's tables, keys as they come."""
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not nested(value)]
    for name, value in table.items():
        for item in [value] if isinstance(value, dict) else value if nested(value) else []:
            lines += [f"[{name}]" if isinstance(value, dict) else f"[[{name}]]", *toml_lines(item)]
    return "\n".join(lines)


def nested(value):
    return isinstance(value, dict) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)
    )


def toml_lines(table):
    return [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]


# Writing and reading


@same_folder
@given(titles)
@example('"quotes" and \\backslashes\\, é 脳 𝄞')
@example("'''")
@example("# {{ study.privacy.epsilon }} {% raw %}")
def test_any_title_is_read_back_as_written(tmp_path, title):
    path = tmp_path / "study.toml"
    path.unlink(missing_ok=True)
    write_study(path, draft(title))
    study = Study.load(path)
    assert study.content.title == title
    assert study.hash == Study(draft(title)).hash


optional = st.fixed_dictionaries(
    {},
    optional={
        "mechanism": st.sampled_from(["cape", "conventional", "local", "pooled"]),
        "masking": st.sampled_from(["uniform", "paper"]),
        "n_colluding": st.sampled_from(["third", 1, 2]),
        "threshold": st.just(4),
        "reserve": st.floats(0, 0.9),
        "delta": st.floats(1e-7, 1e-2),  # where it is very small, some are refused: the grid adds to it
        "insecure_noise": st.booleans(),
        "epsilon": st.floats(0.1, 20) | st.integers(1, 20),
    },
)
analyses = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(["subject", "paper"]),
        "max_iter": st.integers(1, 30),
        "image_shape": st.sampled_from([(1, 12), [12, 1]]),
        "n_components": st.integers(2, 4),
    },
)


@settings(same_folder, max_examples=60)
@given(analyses, optional, st.floats(0.1, 5) | st.none())
def test_every_study_is_read_back_as_written(tmp_path, analysis, privacy, own):
    path = tmp_path / "study.toml"
    path.unlink(missing_ok=True)
    content = draft(analysis=analysis, privacy=privacy, site_2=own)
    write_study(path, content)
    study = Study.load(tmp_path)
    assert study.hash == Study(content).hash
    assert plain(study.content) == plain(content)
    assert study.contract.hash == Study(content).contract.hash


def test_never_over_a_file_and_never_a_bad_study(tmp_path):
    write_study(tmp_path / "study.toml", draft())
    before = (tmp_path / "study.toml").read_bytes()
    for path in (tmp_path / "study.toml", tmp_path):
        with pytest.raises(InputError, match=r"study\.toml already exists and is not overwritten"):
            write_study(path, draft("another"))
    with pytest.raises(InputError, match="the study: title is empty"):
        write_study(tmp_path / "new.toml", draft(" \n"))
    assert os.listdir(tmp_path) == ["study.toml"]
    assert (tmp_path / "study.toml").read_bytes() == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_study(tmp_path / "file" / "study.toml", draft())


# The hash


def leaves(table, where=()):
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict) or nested(value):
            yield from leaves(value, (*where, key))
        else:
            yield (*where, key)


FEATURES = {
    "kind": "atlas",
    "atlas": "atlas.nii.gz",
    "atlas_sha256": "a" * 64,
    "mask": "mask.nii.gz",
    "mask_sha256": "b" * 64,
    "voxel_size": 4.0,
    "space": "MNI",
    "smoothing_fwhm": 6.0,
    "low_pass": 0.1,
    "high_pass": 0.01,
    "confounds": ("motion", "wm_csf"),
}


TEMPLATE = {
    "method": "guided",
    "template": "known.npy",
    "template_sha256": "c" * 64,
    "template_origin": "public",
    "template_source": "an article",
    "template_names": ("a", "b"),
    "template_systems": ("x", "y"),
}


def full_draft():
    """A study in which everything has a value; it cannot be run."""
    analysis = {"image_shape": (3, 4), "max_iter": 7} | TEMPLATE
    return draft(analysis=analysis, features=FEATURES, site_3=1.5)


FIELDS = list(leaves(plain(full_draft())))


@st.composite
def other_values(draw, old):
    """A value of the same kind, another one."""
    if isinstance(old, bool) or old is None:
        return draw(st.sampled_from([3, 5])) if old is None else not old
    if isinstance(old, list):
        return draw(st.permutations(old).filter(lambda new: new != old))
    if isinstance(old, int):
        return old + draw(st.integers(1, 1000))
    if isinstance(old, float):
        likely = st.floats(1, 50) if old > 1 else st.floats(1e-6, 0.9)
        return draw(likely.filter(lambda new: new != old))
    place, letter = draw(st.integers(0, len(old) - 1)), draw(st.characters(exclude_categories=["Cs"]))
    changed = old[:place] + letter + old[place + 1 :]
    return changed if changed != old else old + letter


CHOICES = {
    "method": "paper",
    "mechanism": "pooled",
    "masking": "paper",
    "n_colluding": 1,
    "template_origin": "other-people",
}
KINDS = {"features": "voxels", "analysis": "pca"}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FIELDS), st.data())
def test_every_value_changes_the_hash(field, data):
    table = plain(full_draft())
    before = Study(to_content(table)).hash
    *path, key = field
    place = table
    for step in path:
        place = place[step]
    if key in ("name", "share"):
        place[key] = {"name": "networks", "share": 1.0}[key]
    elif key == "kind":
        place[key] = KINDS[path[0]]
        for other in ("max_iter", "group_maps", "max_components", *TEMPLATE) if path[0] == "analysis" else ():
            del place[other]
    else:
        place[key] = CHOICES[key] if key in CHOICES else data.draw(other_values(place[key]))
    assert Study(to_content(table)).hash != before


def test_the_fields_are_all_of_them():
    names = {field[-1] for field in FIELDS}
    structs = [StudyFile, IcaTable, FeatureTable, PrivacyTable, SiteTable]
    nested = {"analyses", "features", "privacy", "sites"}
    assert names == {name for kind in structs for name in kind.__struct_fields__} - nested


def test_a_study_of_schema_1_keeps_the_hash_that_it_had_before_there_were_features():
    digest = "f4f3a0c01e031fc536a6aee2118d1719850e766780120758d75d94d4712d8b01"

    def first(**changes):
        return Study(msgspec.structs.replace(draft(**changes), schema=1)).hash.hex()

    assert first() == digest
    assert first(features={"kind": "columns"}) == digest
    assert first(features={"standardize": True}) != digest


@same_folder
@given(st.randoms(), st.lists(st.sampled_from(["# a comment", "", "   "]), max_size=5))
def test_comments_and_the_order_of_keys_do_not_change_the_hash(tmp_path, random, extra):
    path = tmp_path / "study.toml"
    content = draft(analysis={"max_iter": 7}, site_3=1.5)

    def shuffled(table):
        keys = random.sample(sorted(table), len(table))
        return {
            key: shuffled(table[key])
            if isinstance(table[key], dict)
            else [shuffled(item) for item in table[key]]
            if nested(table[key])
            else table[key]
            for key in keys
        }

    table = {key: value for key, value in shuffled(plain(content)).items() if value is not None}
    lines = toml(table).splitlines()
    for comment in extra:
        lines.insert(random.randrange(len(lines) + 1), comment)
    path.write_text("\n".join(lines), encoding="utf-8")
    assert Study.load(path).hash == Study(content).hash


def test_the_order_of_sites_changes_the_hash():
    hashes = {
        Study(msgspec.structs.replace(draft(), sites=order)).hash
        for order in itertools.permutations(draft().sites)
    }
    assert len(hashes) == 24


def test_a_value_left_out_is_the_same_as_its_default_and_two_as_two_point_nought(tmp_path):
    table = tomllib.loads(toml(plain(draft())).replace("n_colluding = ", "#").replace("2.0", "2"))
    assert "n_colluding" not in table["privacy"]
    (tmp_path / "study.toml").write_text(toml(table))
    assert Study.load(tmp_path).hash == Study(draft()).hash == Study(draft(privacy={"epsilon": 2})).hash


# What follows from it


def test_the_contract_follows_from_the_file():
    study = Study(draft(privacy={"n_colluding": 2, "reserve": 0.25, "masking": "paper"}, site_3=0.5))
    contract = study.contract
    assert contract.epsilon == (2.0, 2.0, 0.5, 2.0)
    assert contract.subjects == (20, 30, 25, 25)
    assert study.n_subjects == 100
    assert (contract.roster.n_colluding, contract.roster.threshold) == (2, 4)
    assert (contract.reserve, contract.masking, contract.agreement) == (0.25, "paper", study.hash)
    assert contract.stages == study.analysis.stages()


def test_the_method_follows_from_the_file():
    paper = Study(draft(analysis={"method": "paper", "max_iter": 17})).analysis
    assert paper == PaperMethod(12, 4, 17, scan_length=60)
    assert Study(draft(analysis={"method": "paper"})).analysis == PaperMethod(12, 4, scan_length=60)
    releases = sum(stage.count for stage in Study(draft(analysis={"max_iter": 7})).analysis.stages())
    assert releases != sum(stage.count for stage in Study(draft()).analysis.stages())
    smooth = Study(draft(analysis={"image_shape": (30, 30), "n_features": 900})).analysis.stages()
    rough = Study(draft(analysis={"n_features": 900})).analysis.stages()
    assert sum(stage.query.size for stage in smooth) < sum(stage.query.size for stage in rough)


def test_changes_are_told():
    earlier = Study(draft())
    later = Study(draft("Another", (20, 30, 25, 26), privacy={"threshold": 4}, site_1=0.5))
    assert changes(earlier.content, later.content) == [
        'title: "Resting state" changed to "Another"',
        "privacy.threshold: nothing changed to 4",
        "sites.site-1.epsilon: nothing changed to 0.5",
        "sites.site-4.subjects: 25 changed to 26",
    ]
    assert changes(earlier.content, earlier.content) == []


# Refusals


def problems(**changes):
    return Study(draft(**changes)).problems()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": "\t"}, "title is empty; expected a short description of the study"),
        ({"title": "\ud800"}, "title must be one line of at most 500 printable characters"),
        ({"title": "\x1b[31mred"}, "title must be one line of at most 500 printable characters"),
        ({"title": "x" * 501}, "title must be one line of at most 500 printable characters"),
        ({"analysis": {"n_components": 13}}, "analysis.n_components must be at most n_features, 12; got 13"),
        ({"analysis": {"scan_length": 3}}, "analysis.n_components must be at most scan_length, 3; got 4"),
        (
            {"analysis": {"n_components": 1}},
            "analysis.n_components: expected a whole number of at least 2, got 1",
        ),
        ({"analysis": {"max_iter": 0}}, "analysis.max_iter: expected a whole number of at least 1, got 0"),
        (
            {"analysis": {"max_iter": 10**30}},
            "analysis.max_iter: expected a whole number of at most 1,000,000,",
        ),
        (
            {"analysis": {"image_shape": (3, 5)}},
            "features.image_shape [3, 5] has 15 pixels, but features.n_features is 12",
        ),
        (
            {"analysis": {"image_shape": (1000, 1000), "n_features": 10**6}},
            "features.image_shape must have at most",
        ),
        ({"analysis": {"n_features": 10**6}}, f"at most {MAX_BLOCK_WORDS:,} are possible"),
        ({"privacy": {"epsilon": None}}, "privacy.epsilon is missing, and site site-1 has no epsilon either"),
        ({"privacy": {"epsilon": -1}}, "privacy.epsilon: expected a number of at least 1e-09, got -1"),
        ({"site_2": float("inf")}, "sites[2].epsilon: expected a number of at most 1,000,000,000, got inf"),
        (
            {"privacy": {"mechanism": "none"}},
            "privacy.epsilon must not be given for mechanism 'none', which is not private",
        ),
        ({"privacy": {"delta": 1}}, "privacy.delta: expected a number below 1, got 1"),
        (
            {"privacy": {"n_colluding": 4}},
            "n_colluding must be less than the number of sites, 4; got 4",
        ),
        ({"privacy": {"n_colluding": -1}}, "privacy.n_colluding: expected a whole number of at least 0"),
        ({"privacy": {"threshold": 0}}, "privacy.threshold: expected a whole number of at least 2, got 0"),
        ({"privacy": {"threshold": 2}}, "threshold 2 is too low for 4 sites of which 1 may collude"),
        ({"privacy": {"threshold": 5}}, "threshold must lie between 2 and the number of sites 4, got 5"),
        ({"privacy": {"reserve": 1.0}}, "privacy.reserve: expected a number below 1, got 1.0"),
        ({"privacy": {"delta": 1e-300}}, "delta 1e-300 is too small"),
        (
            {"privacy": {"epsilon": 1e9}, "subjects": (10**9,) * 3},
            "the noise is too small for exact integer arithmetic",
        ),
        ({"subjects": (5,)}, "sites: expected at least 2 sites, got 1"),
        ({"subjects": ()}, "sites: expected at least 2 sites, got 0"),
        ({"subjects": (5, 0)}, "sites[2].subjects: expected a whole number of at least 1, got 0"),
        ({"subjects": (5, 10**400)}, "sites[2].subjects: expected a whole number of at most 1,000,000,000,"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_in_words(changes, message):
    found = problems(**changes)
    assert any(message in problem for problem in found)
    assert len(found) == 1
    assert found[0].isprintable()


def refused(*tables):
    return Study(msgspec.structs.replace(draft(), sites=tables)).problems()


def test_cards_and_names_are_checked():
    first, second = sites(5, 6)
    swapped = msgspec.structs.replace(first, card=second.card)
    assert refused(swapped, second) == [
        "sites[1].card belongs to site 'site-2', but the name given is 'site-1'"
    ]
    assert refused(first, first, second) == [
        "sites: 2 sites have the name 'site-1'; site names must be unique"
    ]
    same_key = SiteTable(name="x", subjects=3, card=card("x", sum(map(ord, "site-1"))))
    words = "two sites of the roster have the same public key; each must be unique"
    assert refused(first, second, same_key) == [words]
    broken = msgspec.structs.replace(first, card="a card")
    assert refused(broken, second) == [
        "sites[1].card: not a site card: expected 'capedjica-site-1 NAME KEY', got 'a card'"
    ]
    assert (
        "cannot be used"
        in refused(SiteTable(name="a/b", subjects=1, card="capedjica-site-1 a/b AA=="), first)[0]
    )


def test_all_problems_are_listed_at_once(tmp_path):
    table = plain(draft("  ", analysis={"n_components": 13}, privacy={"epsilon": None, "threshold": 7}))
    table["sites"][1]["card"] = "none"
    (tmp_path / "study.toml").write_text(toml(table))
    with pytest.raises(InputError) as caught:
        Study.load(tmp_path)
    first, *rest = str(caught.value).splitlines()
    assert first == f"{tmp_path / 'study.toml'}: 4 problems"
    assert [line.split()[1] for line in rest] == [
        "title",
        "analysis.n_components",
        "sites[2].card:",
        "privacy.epsilon",
    ]


def test_misspelt_keys_are_put_right(tmp_path):
    write_study(tmp_path / "study.toml", draft())
    text = (tmp_path / "study.toml").read_text()
    for right, wrong in {
        "n_components": "n_component",
        "epsilon": "epsilom",
        "subjects": "subject",
        "mechanism": "mechansim",
        "title": "titel",
        "[privacy]": "[privcy]",
    }.items():
        bad = tmp_path / "bad.toml"
        bad.write_text(text.replace(f"\n{right}", f"\n{wrong}"))
        with pytest.raises(InputError) as caught:
            Study.load(bad)
        name = wrong.strip("[]")
        assert f"{name} is not a known key; did you mean {right.strip('[]')}?" in str(caught.value)


def test_another_schema_is_refused_as_such(tmp_path):
    write_study(tmp_path / "study.toml", draft())
    text = (tmp_path / "study.toml").read_text().replace("schema = 2", "schema = 3\nnovelty = true")
    (tmp_path / "later.toml").write_text(text)
    with pytest.raises(
        InputError, match="schema must be 1 or 2, got 3; the file was written for another version"
    ):
        Study.load(tmp_path / "later.toml")
