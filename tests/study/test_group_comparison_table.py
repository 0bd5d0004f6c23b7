"""Group comparisons in study.toml: what a data manager reads, what is refused, what is known beforehand."""

import msgspec
import numpy as np
import pytest

from capedjica.algorithms import outcomes
from capedjica.algorithms.outcomes import OUTCOMES, Outcome, from_theory
from capedjica.coordinator.planning.plan import plan_study
from capedjica.data.features import FeatureTable
from capedjica.study.analyses.group_comparison import ColumnTable, GroupComparisonTable, GroupSizes
from capedjica.study.analyses.ica import IcaTable
from capedjica.study.study_file import Study, read_study_file, write_study
from tests.support.drafts import GROUPS, ICA, SCANS, draft

SEX = ColumnTable(name="sex", levels=("f", "m"))
AGE = ColumnTable(name="age", range=(18.0, 80.0))
SIZES = tuple(
    GroupSizes(site=f"site-{number}", sizes=sizes)
    for number, sizes in enumerate([(10, 10), (20, 10), (24, 1), (12, 13)], start=1)
)


def table(**changes):
    given = {"values": "amplitudes", "networks": "networks", "contrast": "sex", "columns": (SEX, AGE)}
    return GroupComparisonTable(**given | changes)


def study(features=SCANS, epsilon=2.0, **changes):
    content = draft(privacy={"epsilon": epsilon})
    return Study(msgspec.structs.replace(content, features=features, analyses=(ICA, table(**changes))))


def test_a_study_is_read_back_as_it_was_written(tmp_path):
    content = study(mode="public-groups", group_sizes=SIZES, motion_limit=0.4).content
    write_study(tmp_path / "study.toml", content)
    assert read_study_file(tmp_path / "study.toml") == content
    text = (tmp_path / "study.toml").read_text()
    assert '    { name = "sex", levels = ["f", "m"] },' in text
    assert '    { name = "age", range = [18.0, 80.0] },' in text
    assert '    { site = "site-2", sizes = [20, 10] },' in text
    assert Study.load(tmp_path).hash == Study(content).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"contrast": "age"},
        {"columns": (SEX,)},
        {"mode": "public-groups", "group_sizes": SIZES},
        {"clip": 1.0},
        {"values": "connectivity"},
        {"columns": (SEX, msgspec.structs.replace(AGE, range=(18.0, 81.0)))},
    ],
)
def test_everything_that_is_said_is_agreed_on(changes):
    assert study(**changes).hash != study().hash
    assert study(**changes).contract.hash != study().contract.hash


def test_defaults_stay_out_of_the_hash():
    assert study(mode="private", motion=False, motion_limit=0.5, origin="theory").hash == study().hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contrast": "diagnosis"}, "must be one of the columns (sex, age); got 'diagnosis'"),
        ({"columns": (SEX, SEX)}, "2 columns have the name 'sex'"),
        ({"columns": (SEX, ColumnTable(name="age"))}, "either a range"),
        ({"columns": (SEX, ColumnTable(name="age", range=(9, 9)))}, "low < high"),
        ({"columns": (SEX, ColumnTable(name="hand", levels=("l",)))}, "'hand'"),
        (
            {"columns": (ColumnTable(name="sex", levels=("a", "b", "c")),)},
            "must have 2 levels, got 3",
        ),
        ({"values": "blocks"}, "requires analysis[2].groups"),
        ({"values": "blocks", "groups": ("a", "b")}, "for each of the 3 networks"),
        ({"values": "loadings", "networks": None}, "requires analysis[2].networks"),
        ({"values": "band-power"}, "must be given for outcome 'band-power'"),
        ({"networks": "nothing"}, "must name an earlier analysis of kind 'ica'"),
        ({"motion": True}, "requires images with fMRIPrep confounds"),
        ({"center": (0.0,) * 3}, "origin must state"),
        ({"origin": "public-cohort"}, "requires analysis[2].center and analysis[2].scale"),
        ({"group_sizes": SIZES}, "is only allowed for mode 'public-groups'"),
        ({"mode": "public-groups"}, "the sizes for site site-1 must add up to the 20 enrolled; got none"),
        ({"mode": "public-groups", "group_sizes": SIZES[:3]}, "the sizes for site site-4"),
        ({"mode": "public-groups", "contrast": "age", "group_sizes": SIZES}, "requires two groups"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(changes, words):
    found = study(**changes).problems()
    assert any(words in problem for problem in found), found


def test_a_data_manager_reads_whether_groups_are_protected():
    def said(one):
        step = one.steps[1]
        return " ".join(step.table.words(step.setting))

    assert "Who is in which group is protected" in said(study())
    assert study().not_covered == ()
    public = study(mode="public-groups", group_sizes=SIZES)
    assert "WHO IS IN WHICH GROUP IS NOT PROTECTED" in said(public)
    assert "not protected" in " ".join(public.not_covered)
    assert "age (18 to 80)" in said(study())
    assert "contributes nothing" in said(study())


def test_what_is_exploratory_is_said_and_agreed_on():
    one = study(exploratory=True)
    step = one.steps[1]
    assert "The comparison is exploratory" in " ".join(step.table.words(step.setting))
    assert step.table.article(step.setting).endswith("(exploratory)")
    assert one.hash != study().hash
    assert "xploratory" not in " ".join(study().steps[1].table.words(step.setting))


def test_blocks_are_by_the_systems_of_a_template_unless_groups_are_given():
    known = IcaTable(
        name="networks",
        n_components=3,
        method="template",
        template="template.npy",
        template_origin="public",
        template_systems=("visual", "visual", "motor"),
    )

    def names(**changes):
        given = table(values="blocks", **changes)
        content = msgspec.structs.replace(draft(), features=SCANS, analyses=(known, given))
        setting = Study(content)._settings[1][1]
        assert given.problems(setting) == []
        return given.vector_names(setting), given.pair_names(setting)

    assert names() == (("within visual", "visual - motor"), ("visual", "motor"))
    assert names(groups=("a", "b", "b")) == (("a - b", "within b"), ("a", "b"))
    assert any(
        "the group of each network; it is missing" in found for found in study(values="blocks").problems()
    )


def test_motion_is_a_column_of_the_design():
    voxels = FeatureTable(kind="voxels", mask="m.nii.gz", n_features=6, scan_length=60)
    one = table(motion=True)
    assert study(voxels, motion=True)._analysis_problems() == []
    assert [column.name for column in one.design.columns] == ["sex", "age", "mean_fd"]
    assert one.participant_columns == ("sex", "age")


def test_centre_and_scale_come_from_theory_or_are_given():
    one = study()
    step = one.steps[1]
    theory = from_theory(step.analysis.values.outcome, 60)
    assert step.analysis.values.scale == tuple(theory.scale)
    assert step.analysis.rows.scale == tuple(theory.scale)
    given = study(center=(0.1, 0.2, 0.3), scale=(1.0, 2.0, 3.0), origin="earlier-study").steps[1]
    assert given.analysis.values.center == (0.1, 0.2, 0.3)
    assert given.analysis.rows.scale == (1.0, 2.0, 3.0)
    assert given.table.vector_names(given.setting) == ("network 1", "network 2", "network 3")


# Of every outcome: center and scale of scans of 200 time points, of 4 networks in 2 groups.
THEORY_1 = {
    "connectivity": (0.0, 0.15148270048757564),
    "partial-connectivity": (0.0, 0.12225795903338378),
    "blocks": (0.0, 0.12225795903338378),
    "amplitudes": (0.0, 0.17253019059476712),
    "band-power": (0.0, 0.37416573867739417),
    "spectra": (0.0, 0.48989794855663565),
    "loadings": (1.2, 0.15148270048757564),
}


@pytest.mark.parametrize("values", OUTCOMES)
def test_theory_never_changes(values):
    """Earlier studies rest on this one; another theory needs another name in study.toml."""
    own = {"blocks": {"groups": tuple("aabb")}, "band-power": {"bands": ((0.0, 0.1),)}}.get(values, {})
    theory = from_theory(Outcome(values, 4, **own), 200)
    assert (theory.center[0], theory.scale[0]) == pytest.approx(THEORY_1[values], rel=1e-12)


def test_the_hash_covers_what_theory_rests_on(monkeypatch):
    before = study().hash
    assert before.hex() == "f06201240bbad833e8ccb6e458f3a3458dfc862cf91c4d1b129a909f28ef7ca1"
    given = {"center": (0.0,) * 3, "scale": (1.0,) * 3, "origin": "earlier-study"}
    without = study(**given).hash
    for name, value in [("_BETWEEN", {"amplitudes": 0.17}), ("AUTOCORRELATION", 0.4), ("_THEORY", 2)]:
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, name, value)
            assert study().hash != before, name
            assert study(**given).hash == without


class TestPlans:
    def found(self, **changes):
        ((one,),) = plan_study(study(**changes)).detectable.values()
        return one

    def test_more_budget_finds_smaller_differences(self):
        sizes = [self.found(epsilon=epsilon)["single"] for epsilon in (0.5, 2.0, 8.0, 100.0)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > self.found()["without_privacy"]
        assert self.found()["among_all"] > self.found()["single"]

    def test_without_noise_it_is_the_textbooks_difference(self):
        """(z_0.975 + z_0.8) sqrt(1/n_1 + 1/n_2) of 100 people with groups that differ by 2 units of +-1."""
        one = self.found(epsilon=1e6, values="connectivity", clip=100.0)
        people, variance = 100, 0.9
        expected = 2 * 2.8016 / np.sqrt(people * variance)
        assert one["without_privacy"] == pytest.approx(expected, rel=1e-3)

    def test_public_groups_find_smaller_ones(self):
        balanced = tuple(
            GroupSizes(site=f"site-{number}", sizes=sizes)
            for number, sizes in enumerate([(10, 10), (15, 15), (12, 13), (12, 13)], start=1)
        )
        public = self.found(mode="public-groups", group_sizes=balanced, columns=(SEX,))
        assert public["single"] < self.found(columns=(SEX,))["single"]

    def test_other_studies_have_none(self):
        assert plan_study(Study(draft())).detectable == {}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"dx": "0", "age": "30"}, []),
        ({"dx": "0", "age": "n/a"}, [("no age", False)]),
        ({"age": "30"}, [("no dx", False)]),
        ({"dx": "2", "age": "30"}, [("dx '2'", True)]),
        ({"dx": "1", "age": "17"}, [("age 17", False)]),
        ({"dx": "1", "age": "old"}, [("age 'old'", True)]),
    ],
)
def test_a_site_is_told_what_is_wrong_with_a_row(row, expected):
    one = GROUPS["networks, then groups"][1][1]
    assert [(found, fatal) for found, _, fatal in one.covariate_notes(row)] == expected


@pytest.mark.parametrize(
    ("groups", "words"),
    [("0011", ""), ("0000", "same for all participants"), ("0001", "one participant with dx '1'"), ("", "")],
)
def test_a_site_is_told_what_is_odd_about_all_together(groups, words):
    one = GROUPS["networks, then groups"][1][1]
    found = [what for what, *_ in one.site_notes([{"dx": group} for group in groups], "site-1")]
    assert bool(found) == bool(words)
    assert words in " ".join(found)


@pytest.mark.parametrize(("controls", "patients", "refused"), [(8, 12, False), (12, 8, True), (7, 12, False)])
def test_public_group_sizes_that_contradict_the_table_are_refused(controls, patients, refused):
    """Otherwise the mean outcome of the site would enter the effects. Missing values contradict nothing."""
    sizes = (GroupSizes(site="site-1", sizes=(8, 12)), *SIZES[1:])
    own = study(mode="public-groups", group_sizes=sizes).content.analyses[1]
    rows = [{"sex": "f"}] * controls + [{"sex": "m"}] * patients
    assert any(fatal for *_, fatal in own.site_notes(rows, "site-1")) == refused
