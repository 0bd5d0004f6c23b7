"""A map from several threads behaves like one from a single thread, and linear algebra keeps to one."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from capedjica.algorithms.analysis import ReleasedMean, Replay
from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.parallel import InParallel


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_results_come_in_order_whatever_takes_longest():
    def work(number):
        time.sleep(0.01 * (number % 3))
        return number, threading.get_ident()

    results = list(InParallel(work, range(20)))
    assert [number for number, _ in results] == list(range(20))
    assert threading.get_ident() not in {thread for _, thread in results}


def test_a_failure_comes_out_in_its_place_and_the_rest_goes_on():
    def work(number):
        if number in (3, 9):
            raise ValueError(number)
        return number

    results, mapped = [], InParallel(work, range(10))
    while True:
        try:
            results.append(next(mapped))
        except ValueError:
            results.append(None)
        except StopIteration:
            break
    assert results == [0, 1, 2, None, 4, 5, 6, 7, 8, None]


def test_it_reads_only_a_little_ahead():
    read = []

    class Items(list):
        def __getitem__(self, number):
            read.append(number)
            return number

    mapped = InParallel(lambda number: number, Items(range(1000)))
    next(mapped)
    time.sleep(0.05)
    assert len(read) < 100


@pytest.mark.parametrize("taken", [0, 3, 5, 6])
def test_linear_algebra_has_its_threads_back_however_far_it_was_read(taken):
    """All five results taken, the end reached, or given up in the middle."""
    before = blas_threads()
    mapped = InParallel(lambda number: blas_threads(), range(5))
    for _, threads in zip(range(taken), mapped, strict=False):
        assert set(threads) == {1}
    del mapped
    assert blas_threads() == before


def test_of_nothing_there_is_nothing():
    assert list(InParallel(len, [])) == []


@pytest.mark.parametrize("thirsty", [0, 3, 7])
def test_the_memory_that_one_item_takes_is_never_anothers_lack(monkeypatch, thirsty):
    """Items that find no memory beside a greedy one find it alone; one that needs too much fails alone."""
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 2)
    lock, used, limit, lacked = threading.Lock(), [0], 10, threading.Event()

    def work(number):
        need = {thirsty: 10, 5: 11}.get(number, 2)
        with lock:
            if used[0] + need > limit:
                if number != 5:
                    lacked.set()
                raise MemoryError
            used[0] += need
        if number == thirsty:
            lacked.wait(30)
        with lock:
            used[0] -= need
        return number

    mapped, results = InParallel(work, range(10)), []
    for _ in range(10):
        try:
            results.append(next(mapped))
        except MemoryError:
            results.append("no memory")
    assert lacked.is_set(), "somebody was in the way of another"
    assert results == [number if number != 5 else "no memory" for number in range(10)]
    with pytest.raises(StopIteration):
        next(mapped)


def test_as_many_threads_as_there_are_change_no_bit_of_an_estimate():
    """What a seeded run gives is the same on another machine of the kind, and in another process."""
    method, rng = PaperMethod(400, 3, max_iter=2), np.random.default_rng(0)
    released = [
        ReleasedMean(number, rng.standard_normal(stage.query.size), 1.0)
        for number, stage in enumerate(method.stages())
        for _ in range(stage.count)
    ]
    estimates = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            estimates.append(method.estimate(Replay(released)).estimate)
    np.testing.assert_array_equal(*estimates)
