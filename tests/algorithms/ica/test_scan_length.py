"""Lengths of scans: public numbers decide what takes part and how much memory it takes, never a scan."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from capedjica import CapeDJICA
from capedjica.algorithms.ica.paper_method import PaperSite
from capedjica.algorithms.ica.scan_length import (
    LONGEST_SCAN,
    TYPICAL_SCAN,
    CutScans,
    check_scan_length,
    longest_scan,
    reserve,
)
from capedjica.algorithms.ica.subject_level import SubjectMethod, SubjectSite
from capedjica.algorithms.state import pack
from capedjica.errors import InputError

R, D = 3, 8


def scans(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(D, R))
    return [rng.laplace(size=(T, R)) @ mixing.T + 0.1 * rng.normal(size=(T, D)) for T in lengths]


def test_of_a_long_scan_the_first_part_takes_part():
    assert longest_scan(100) == 400
    assert longest_scan(LONGEST_SCAN) == longest_scan(LONGEST_SCAN // 2) == LONGEST_SCAN
    (long,) = scans(50)
    (cut,) = CutScans([long], 20)
    assert_array_equal(cut, long[:20])
    assert_array_equal(CutScans([long, long], 20)[1:][0], cut)


@pytest.mark.parametrize("value", [0, -3, LONGEST_SCAN + 1, 2.5, None, "long"])
def test_a_length_that_makes_no_sense_is_refused(value):
    with pytest.raises(InputError, match="scan_length must be"):
        check_scan_length(value)
    with pytest.raises(InputError, match="scan_length must be"):
        CapeDJICA(R, 1.0, scan_length=value).fit([scans(30, 30), scans(30, 30)])


def test_scans_too_short_for_the_components_are_refused():
    with pytest.raises(InputError, match="scan_length must be at least 3, the number of components; got 2"):
        CapeDJICA(R, 1.0, scan_length=2).fit([scans(30, 30), scans(30, 30)])


def rows_at_every_stage(kind, subjects, longest):
    """What a site computes, stage by stage, at the same public values."""
    V = np.linalg.qr(np.random.default_rng(1).normal(size=(D, R)))[0]
    if kind == "paper":
        site = PaperSite(subjects, R, longest=longest)
        published, state, stages = pack(V=V), pack(W=np.eye(R), b=np.zeros(R)), 2
    else:
        site = SubjectSite(subjects, R, longest=longest)
        published, state, stages = pack(V=V, sphering=np.eye(R)), pack(W=np.eye(R)), 4
    return [np.concatenate(list(site(stage, published, state))) for stage in range(stages)]


@pytest.mark.parametrize("kind", ["subject", "paper"])
def test_a_longer_scan_counts_as_its_first_part_everywhere(kind):
    subjects = scans(40, 55, 30, 90)
    cut = [subject[:50] for subject in subjects]
    for whole, part in zip(
        rows_at_every_stage(kind, subjects, 50), rows_at_every_stage(kind, cut, 50), strict=True
    ):
        assert_array_equal(whole, part)


@pytest.mark.parametrize("kind", ["subject", "paper"])
def test_however_long_one_scan_is_the_others_stay_as_they_are(kind):
    others = scans(40, 30, 25)
    for length in (0, 1, 50, 20_000):
        odd = scans(length, seed=5)[0]
        together = rows_at_every_stage(kind, [others[0], odd, *others[1:]], 50)
        alone = rows_at_every_stage(kind, others, 50)
        for rows, expected in zip(together, alone, strict=True):
            assert_array_equal(np.delete(rows, 1, axis=0), expected)


ALLOCATIONS = """
import gc, sys, tracemalloc
import numpy as np
from capedjica.algorithms.state import pack
from capedjica.algorithms.ica.subject_level import SubjectSite
from tests.algorithms.ica.test_scan_length import D, R, rows_at_every_stage, scans

rows_at_every_stage("subject", scans(30, 30), 4000)  # compile
np.seterr(all="ignore")
for odd in (30, 4000):
    tracemalloc.start()
    subjects = [*scans(30, 30, 30), *scans(odd)]
    before = tracemalloc.get_traced_memory()[0]
    site = SubjectSite(subjects, R, longest=4000)
    reserved = tracemalloc.get_traced_memory()[0]
    V = np.eye(D)[:, :R]
    list(site(1, pack(V=V, sphering=np.eye(R)), b""))
    gc.collect()
    tracemalloc.reset_peak()
    list(site(3, pack(V=V, sphering=np.eye(R)), pack(W=np.eye(R))))
    list(site(3, pack(V=V, sphering=2 * np.eye(R)), pack(W=np.eye(R))))
    print(reserved - before >= 2 * 4 * 4000 * R * 4, tracemalloc.get_traced_memory()[1] - reserved)
    tracemalloc.stop()
"""


def test_the_shared_steps_take_the_same_memory_whatever_the_scans_are():
    """All of it at the start, but for a little that follows from public numbers."""
    one_thread = os.environ | {"NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATIONS], capture_output=True, text=True, check=True, env=one_thread
    )
    (enough, short), (also, long) = (line.split() for line in done.stdout.splitlines())
    assert (enough, also) == ("True", "True")
    assert abs(int(long) - int(short)) < 4096


def test_room_that_is_not_there_is_missed_before_any_scan_is_read():
    class NeverRead:
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            raise AssertionError("a scan was read")

    method = SubjectMethod(D, R, LONGEST_SCAN)
    with pytest.raises(InputError, match=r"scans of up to 16384 time points need .* GB on disk"):
        SubjectSite(NeverRead(), R, longest=longest_scan(method.scan_length))
    with pytest.raises(InputError, match="GB on disk"):
        reserve(10**12, 1000, 20)


class LacksMemoryOnce(list):
    """Scans of which the second finds no memory when it is read first, beside others."""

    def __init__(self, scans):
        super().__init__(scans)
        self._lacks = True

    def __getitem__(self, index):
        if index == 1 and self._lacks:
            self._lacks = False
            raise MemoryError
        return super().__getitem__(index)


@pytest.mark.parametrize(("kind", "stage"), [("subject", 0), ("subject", 1), ("subject", 3), ("paper", 1)])
def test_who_finds_no_memory_beside_others_is_read_again_alone(kind, stage):
    subjects = scans(40, 30, 25)
    V = np.linalg.qr(np.random.default_rng(1).normal(size=(D, R)))[0]
    published = pack(V=V) if kind == "paper" else pack(V=V, sphering=np.eye(R))
    state = pack(W=np.eye(R), b=np.zeros(R)) if kind == "paper" else pack(W=np.eye(R))
    make = PaperSite if kind == "paper" else SubjectSite
    lacking, plain = (
        np.concatenate(list(make(read, R)(stage, published, state)))
        for read in (LacksMemoryOnce(subjects), subjects)
    )
    assert_array_equal(lacking, plain)


# The estimator -------------------------------------------------------------


def fitted(sites, **options):
    return CapeDJICA(R, 5.0, max_iter=2, on_bad="zero", **options).fit(sites)


@pytest.mark.parametrize("method", ["subject", "paper", "dp-djica"])
def test_no_scan_has_a_say_in_noise_and_clips(method):
    sites = [scans(60, 80, 70), scans(60, 70, 65, seed=2)]
    charges = []
    for odd in (sites[0][0], scans(7)[0], scans(1100)[0], np.full((50, D), np.nan), sites[0][0][:0]):
        model = fitted([[odd, *sites[0][1:]], sites[1]], method=method, scan_length=70)
        charges.append([(charge.label, dict(charge.site_mu)) for charge in model.privacy_.releases])
        if method != "dp-djica":
            charges[-1].append([charge.noise for charge in model.privacy_.releases])
    assert all(charge == charges[0] for charge in charges)


def test_dp_djica_is_not_of_one_site_alone():
    with pytest.raises(InputError, match="uses all sites; mechanism 'local' uses a single site"):
        fitted([scans(30, 30), scans(30, 30)], method="dp-djica", mechanism="local")


def test_the_plan_and_the_estimator_have_one_default(cli):
    plan = cli("plan", "--epsilon", "1", "--sites", "2", "--subjects", "6", "--features", str(D), "--json",
               "--components", str(R))  # fmt: skip
    assert f'"scan_length": {TYPICAL_SCAN}' in plan.stdout
    assert CapeDJICA(R).scan_length == TYPICAL_SCAN
    assert f"(default {TYPICAL_SCAN})" in " ".join(cli("plan", "--help").stdout.split())


def test_a_scan_that_would_be_cut_is_an_error_unless_said_otherwise():
    sites = [scans(60, 201), scans(60, 70)]
    with pytest.raises(InputError, match="site site-1, subject 1 has 201 time points, but at most 200 are"):
        CapeDJICA(R, 5.0, scan_length=50).fit(sites)
    CapeDJICA(R, mechanism="none", method="djica", scan_length=50, max_iter=2).fit(sites)
    fitted(sites, scan_length=50)
