"""The same answers however the work is spread."""

import math
import os
import signal
import warnings

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from tiny import TINY, result

from mirrormax.experiments import Work, fig4, open_work


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_answers_come_in_order_and_each_is_counted():
    ticks = []
    work = Work()
    work.advance = ticks.append
    assert work.each(math.sqrt, [(9.0,), (4.0,), (1.0,)], share=0.6) == [3.0, 2.0, 1.0]
    assert ticks == pytest.approx([0.2, 0.2, 0.2])


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_tasks_see_one_thread_and_leave_the_rest_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2, user_api="blas"):
            products = blas_threads()
            assert 2 in products
            assert Work().each(torch.get_num_threads, [()]) == [1]
            assert torch.get_num_threads() == 2
            (within,) = Work().each(blas_threads, [()])
            assert {*within} == {1}
            assert blas_threads() == products
    finally:
        torch.set_num_threads(before)


def test_two_processes_give_the_numbers_of_one():
    with open_work(2) as work:
        same(fig4.run(TINY["fig4"], work), result("fig4"))


@pytest.fixture(scope="module")
def cluster():
    """The address of a scheduler with two worker processes; one that dies is replaced after a while."""
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own: ports in use, clocks, closing sockets
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
            yield made.scheduler_address


@pytest.fixture
def work(cluster):
    with open_work(backend="dask", scheduler=cluster) as made:
        made.client.wait_for_workers(2, timeout=60)
        yield made


def test_a_dask_cluster_of_two_workers_gives_the_numbers_of_one_process(work):
    same(fig4.run(TINY["fig4"], work), result("fig4"))


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_worker_that_is_killed_takes_nothing_with_it(work):
    """Killed at the first answer, when it holds others that were not fetched yet and works on one."""
    counted, killed = [], []
    victim = min(work.client.run(os.getpid).values())

    def kill_at_the_first_answer(share):
        counted.append(share)
        if not killed:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    work.advance = kill_at_the_first_answer
    large = [np.full(1000, float(k)) for k in range(12)]  # joblib would keep such arguments on one worker
    assert work.each(np.sum, [(part,) for part in large]) == [1000.0 * k for k in range(12)]
    assert killed == [victim]
    assert sum(counted) == pytest.approx(1.0)


def test_an_error_in_a_task_comes_back_as_itself(work):
    with pytest.raises(ValueError, match="math domain error"):
        work.each(math.sqrt, [(1.0,), (-1.0,), (4.0,)])
    assert work.each(math.sqrt, [(4.0,)]) == [2.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jobs": 0}, "--jobs must be at least 1"),
        ({"backend": "dask"}, "go together"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "go together"),
        ({"backend": "mpi"}, "--backend must be one of"),
    ],
    ids=str,
)
def test_work_that_cannot_be_done_is_refused(settings, message):
    with pytest.raises(ValueError, match=message), open_work(**settings):
        pass
