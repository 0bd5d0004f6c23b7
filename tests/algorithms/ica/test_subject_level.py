"""The default method: what one person can move at each stage, the basis, and the turns of W."""

import math

import numpy as np
import pytest

from capedjica.algorithms.ica import subject_level
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.state import pack
from capedjica.algorithms.svec import svec
from capedjica.data import make_synthetic
from capedjica.data.simulated.synthetic import SyntheticModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.release import plan_release
from capedjica.mechanisms.site.clipping import sum_subjects
from capedjica.metrics import normalized_gain_index
from tests.algorithms.ica.mixtures import fastica

R, D, T = 4, 20, 60
STAGES = subject_level.SubjectMethod(D, R, T, max_rotations=3).stages()
V = np.linalg.qr(np.random.default_rng(1).standard_normal((D, R)))[0]
SPHERED = pack(V=V, sphering=np.diag([3.0, 1.0, 0.5, 0.1]))
PUBLISHED = (b"", pack(V=V, sphering=np.eye(R)), SPHERED, SPHERED)
STATE = pack(W=np.linalg.qr(np.random.default_rng(2).standard_normal((R, R)))[0])


def hostile_subjects(count=120):
    """Scans as far apart as scans can be: disjoint features, wild scales, spikes, NaN, too short."""
    rng = np.random.default_rng(0)
    for number in range(count):
        scan = rng.standard_t(2, size=(T, D)) * 10.0 ** rng.uniform(
            -15, 15, size=(T, 1) if number % 2 else (1, D)
        )
        if number % 3 == 0:
            scan[:, : D // 2] = 0
        if number % 3 == 1:
            scan[:, D // 2 :] = 0
        if number % 17 == 0:
            scan[3, 5] = [np.nan, np.inf, 1e30][number % 3]
        yield scan[: 2 if number % 19 == 0 else T]


def plans():
    """The stages of a real study, with the grid and noise that sites would use."""
    names = [f"s{number}" for number in range(4)]
    study = EmbeddedStudy(
        "test",
        dict.fromkeys(names, 9),
        dict.fromkeys(names, None),
        STAGES,
        in_process(epsilon=1.0),
    )
    contract = study.contract
    return [
        plan_release(contract, s.query, s.share / s.count, contract.roster.names) for s in contract.stages
    ]


@pytest.mark.parametrize(
    "stage", [subject_level.SUBSPACE, subject_level.COARSE, subject_level.FINE, subject_level.ROTATION]
)
def test_one_person_moves_no_stage_further_than_is_charged(stage):
    """What is charged covers a move of mu times the honest noise: nobody, however odd, moves further."""
    plan = plans()[stage]

    def contribution(scan):
        site = subject_level.SubjectSite([scan], R)
        return sum_subjects(lambda: site(stage, PUBLISHED[stage], STATE), plan, "s0", 1)[0].astype(float)

    rows = np.array([contribution(scan) for scan in hostile_subjects()])
    squares = np.sum(rows**2, axis=1)
    farthest = math.sqrt(np.max(squares[:, None] + squares[None] - 2 * rows @ rows.T))
    # uniform masks: what covers a move is the noise of the S - S_C honest sites with the least of it
    honest = math.sqrt(sum(sorted(n**2 for n in plan.noise.values())[:3]))
    assert farthest <= plan.mu["s0"] * honest * (1 + 1e-9)
    if stage == subject_level.SUBSPACE:  # reached by disjoint scans, so a smaller spread would be false
        assert farthest > 0.998 * plan.mu["s0"] * honest


def test_projectors_of_disjoint_scans_are_as_far_apart_as_stated():
    left, right = np.zeros((2, T, D))
    rng = np.random.default_rng(3)
    left[:, :R], right[:, R : 2 * R] = rng.standard_normal((2, T, R))
    rows = [
        next(iter(subject_level.SubjectSite([scan], R)(subject_level.SUBSPACE, b"", b"")))[0]
        for scan in (left, right)
    ]
    assert np.linalg.norm(rows[0]) == pytest.approx(math.sqrt(R))
    distance = np.linalg.norm(rows[0] - rows[1])
    query = STAGES[subject_level.SUBSPACE].query
    assert math.sqrt(2 * R) * (1 - 1e-9) < distance <= query.spread * query.clip


def test_a_projector_has_rank_r_whatever_the_scan_spans():
    scan = np.random.default_rng(5).standard_normal((T, D))
    row = next(iter(subject_level.SubjectSite([scan], R)(subject_level.SUBSPACE, b"", b"")))[0]
    assert np.linalg.eigvalsh(subject_level.unsvec(row)) == pytest.approx([0] * (D - R) + [1] * R, abs=1e-9)


@pytest.mark.parametrize("length", [T, D // 2])
def test_a_projector_is_one_whatever_the_scale_and_the_rank(length):
    """Orthonormal to 1e-12, though the scan may be wide, badly scaled, or of fewer directions than asked."""
    rng = np.random.default_rng(6)
    for rank in (1, R - 1, D):
        scan = rng.standard_normal((length, D)) * 10.0 ** rng.uniform(-6, 6, size=D)
        scan = (scan[:, :rank] @ rng.standard_normal((rank, D)) if rank < D else scan).astype(np.float32)
        values = np.linalg.eigvalsh(subject_level.projector(scan, R))
        assert np.minimum(np.abs(values), np.abs(values - 1)).max() < 1e-12
        assert 1 <= np.round(values.sum()) <= R


def test_clips_are_the_typical_norms_they_say_they_are():
    """On data of the paper's model, at R = 20 and 250 time points, half to twice the median norm."""
    study = make_synthetic(1, 24, 20, 250, 20, random_state=0)
    site = subject_level.SubjectSite(study.sites[0], 20, low_pass(study.image_shape))
    rows = np.concatenate(list(site(subject_level.SUBSPACE, b"", b"")))
    span = np.linalg.eigh(subject_level.unsvec(rows.mean(axis=0)))[1][:, -20:]
    norms, sphering = [], np.eye(20)
    for stage in (subject_level.COARSE, subject_level.FINE):
        logs = np.concatenate(list(site(stage, pack(V=span, sphering=sphering), b"")))
        sphering = subject_level.whitened_further(sphering, subject_level.unsvec(logs.mean(axis=0)))
        norms.append(logs)
    norms += site(subject_level.ROTATION, pack(V=span, sphering=sphering), pack(W=np.eye(20)))
    clips = (
        subject_level.coarse_clip(20),
        subject_level.fine_clip(20, 250),
        subject_level.rotation_clip(20, 250),
    )
    for vectors, clip in zip(norms, clips, strict=True):
        assert 0.5 < np.median(np.linalg.norm(vectors, axis=1)) / clip < 2


def badly_conditioned(number, seed=0, n_subjects=48):
    """Four sites of 36 numbers for each time point, and a mixing matrix of this condition number."""
    model = SyntheticModel.draw(n_subjects, 6, 150, 6, seed).conditioned(number)
    scans = list(model.subjects())
    quarter = n_subjects // 4
    return {f"s{s}": scans[s * quarter : (s + 1) * quarter] for s in range(4)}, model.mixing


def gain_index(unmixing, mixing):
    product = unmixing @ mixing
    return normalized_gain_index(product / np.linalg.norm(product, axis=1, keepdims=True))


@pytest.mark.parametrize("number", [3, 50, 1000])
def test_without_noise_weak_components_are_found_as_by_fastica(number):
    sites, mixing = badly_conditioned(number)
    method = subject_level.SubjectMethod(36, 6, 150)
    found = method.estimate(EmbeddedStudy.of("t", method, sites, in_process(epsilon=None, mechanism="none")))
    pooled = np.concatenate([scan for site in sites.values() for scan in site]).astype(float)
    values, vectors = np.linalg.eigh(pooled.T @ pooled / len(pooled))
    sphering = vectors[:, -6:] / np.sqrt(values[-6:])
    reference = fastica(pooled @ sphering) @ sphering.T
    assert gain_index(found.estimate, mixing) < gain_index(reference, mixing) + 0.005
    assert found.recoverable.all()
    assert found.stability == pytest.approx(np.ones(6), abs=1e-6)


def test_without_noise_weak_directions_are_found_in_double_precision():
    sites, mixing = badly_conditioned(1000)
    span = np.linalg.qr(mixing)[0]
    scan = sites["s0"][0]
    for exact, worst in ((False, 1e-2), (True, 1e-6)):
        site = subject_level.ProjectorSite([scan], 6, exact=exact)
        row = next(iter(site(subject_level.SUBSPACE, b"", b"")))[0]
        lost = 6 - np.trace(span.T @ subject_level.unsvec(row) @ span)
        assert lost < worst
    assert lost < 1e-6


def test_with_noise_floors_and_clips_are_those_that_were_measured():
    loud, quiet = (subject_level.SubjectMethod(D, 20, 250, noise) for noise in (1e-9, 0.0))
    assert loud.clips == pytest.approx((math.sqrt(20), math.sqrt(20), 1.878, 0.551), rel=1e-3)
    assert (loud.floor, [stage.count for stage in loud.stages()[:3]]) == (1e-3, [1, 1, 1])
    assert quiet.clips[subject_level.COARSE] > 20 * loud.clips[subject_level.COARSE]
    assert quiet.floor < 1e-6


def test_whitening_twice_is_whitening_by_both():
    """With S from a first matrix and the logarithm of S C S exactly, the result whitens C."""
    rng = np.random.default_rng(7)
    covariance = np.cov(rng.standard_normal((R, 50)))
    first = subject_level.whitened_further(np.eye(R), np.diag([0.5, -0.2, 0.1, -0.4]))
    assert first == pytest.approx(np.diag(np.exp([-0.25, 0.1, -0.05, 0.2])))
    values, vectors = np.linalg.eigh(first @ covariance @ first)
    second = subject_level.whitened_further(first, (vectors * np.log(values)) @ vectors.T)
    assert second @ covariance @ second == pytest.approx(np.eye(R), abs=1e-12)
    assert second == pytest.approx(second.T)


def test_noise_of_any_size_leaves_numbers():
    rng = np.random.default_rng(9)
    sphering = np.eye(R)
    for size in (1.0, 30.0, 1e3, 1e6):
        noise = size * rng.standard_normal((R, R))
        sphering = subject_level.whitened_further(
            subject_level.whitened_further(np.eye(R), noise + noise.T), noise.T + noise
        )
        assert np.isfinite(sphering).all()
        assert np.isfinite(np.linalg.inv(sphering)).all()


def test_a_log_covariance_has_no_trace_and_forgets_the_scale():
    samples = np.random.default_rng(8).standard_normal((T, R)) * [3, 1, 0.5, 0.1]
    logarithm = subject_level.log_covariance(samples.T @ samples)
    assert np.trace(logarithm) == pytest.approx(0, abs=1e-12)
    assert subject_level.log_covariance(1e-18 * samples.T @ samples) == pytest.approx(logarithm)
    for broken in (np.zeros((R, R)), np.full((R, R), np.nan), np.full((R, R), np.inf)):
        assert np.isnan(subject_level.log_covariance(broken)).all()


def test_a_subject_without_eigenvalues_leaves_those_of_others(monkeypatch):
    """LAPACK fails for a whole stack; a subject for which it does counts as unusable, and no other."""
    rng = np.random.default_rng(8)
    moments = np.stack([samples.T @ samples for samples in rng.standard_normal((4, T, R))])
    expected, eigh = subject_level.log_covariance(moments), np.linalg.eigh

    def fails(matrices):
        if (matrices == moments[2]).all(axis=(-2, -1)).any():
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return eigh(matrices)

    monkeypatch.setattr(np.linalg, "eigh", fails)
    found = subject_level.log_covariances(moments, subject_level.FLOOR)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(found[[0, 1, 3]], expected[[0, 1, 3]])


def test_whitened_subjects_have_unit_power_and_broken_ones_stay_alone():
    rng = np.random.default_rng(9)
    scans = [rng.standard_normal((length, D)).astype(np.float32) for length in (T, 2 * T, T)]
    no_one = np.empty((0, D), np.float32)
    broken = [scans[0], np.full((T, D), np.nan, np.float32), np.zeros((T, D), np.float32), no_one, *scans[1:]]
    sphering = np.linalg.cholesky(np.cov(rng.standard_normal((R, 9))))  # nothing says that it is symmetric
    published = pack(V=V, sphering=sphering)
    rows = {}
    for name, subjects in (("sound", scans), ("broken", broken)):
        site = subject_level.SubjectSite(subjects, R)
        for stage in (subject_level.COARSE, subject_level.ROTATION):
            rows[name, stage] = np.concatenate(list(site(stage, published, STATE)))
        packed = site._whiten()
        powers = [
            np.sum(packed.subject(m).astype(float) ** 2) / max(len(packed.subject(m)), 1)
            for m in range(len(subjects))
        ]
        assert [power for power in powers if power > 0] == pytest.approx([R] * 3, rel=1e-5)
    samples = (scans[1] - scans[1].mean(axis=0)).astype(float) @ V @ sphering
    expected = subject_level.log_covariance(samples.T @ samples)
    assert rows["sound", subject_level.COARSE][1] == pytest.approx(svec(expected), rel=1e-4, abs=1e-5)
    for stage in (subject_level.COARSE, subject_level.ROTATION):
        assert np.array_equal(rows["broken", stage][[0, 4, 5]], rows["sound", stage])


def test_w_stays_orthogonal_and_turns_against_the_gradient():
    rng = np.random.default_rng(4)
    W = np.eye(R)
    for _ in range(50):
        W = subject_level.rotate(W, rng.standard_normal(R * (R - 1) // 2))
    assert np.abs(W @ W.T - np.eye(R)).max() < 1e-9
    small = np.zeros(R * (R - 1) // 2)
    small[0] = 1e-6
    assert subject_level.rotate(np.eye(R), small)[0, 1] == pytest.approx(-1e-6)


def test_steps_without_noise():
    assert subject_level.stiffness_of(24) == pytest.approx(0.1 + 1.6 / 24)


def test_steps_are_whole_in_the_first_half_and_then_fall():
    lengths = [subject_level.step_length(i, 20) for i in range(1, 21)]
    assert lengths[:11] == [1.0] * 11
    assert lengths[11:] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_public_values_of_another_method_are_refused():
    site = subject_level.SubjectSite([np.ones((T, D))], R)
    for stage, published, state in (
        (subject_level.COARSE, pack(V=np.ones((D, R + 1)), sphering=np.eye(R)), b""),
        (subject_level.COARSE, pack(V=V), b""),
        (subject_level.ROTATION, pack(V=V), STATE),
        (subject_level.ROTATION, SPHERED, pack(W=np.eye(R + 1))),
        (subject_level.ROTATION, SPHERED, b"nonsense"),
    ):
        with pytest.raises(ProtocolError):
            site(stage, published, state)


def test_the_basis_is_orthonormal_and_keeps_smooth_maps():
    basis = low_pass((30, 30))
    assert basis.shape == (121, 900)
    assert basis @ basis.T == pytest.approx(np.eye(121), abs=1e-12)
    maps = make_synthetic(1, 2, 20, 30, 30, random_state=0).mixing
    assert np.sum((basis @ maps) ** 2) / np.sum(maps**2) > 0.998
    assert low_pass((3, 1)).shape == (2, 3)
    with pytest.raises(InputError, match="image_shape must contain numbers of at least 1"):
        low_pass((0, 5))
