"""The same answers however the work is spread."""

import math
import warnings

import numpy as np
import pytest
import torch
from tiny import TINY, result

from mirrormax.experiments import fig4
from mirrormax.experiments.work import Work, open_work


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_answers_come_in_order_and_each_is_counted():
    ticks = []
    work = Work()
    work.advance = ticks.append
    assert work.map(math.sqrt, [9.0, 4.0, 1.0], share=0.6) == [3.0, 2.0, 1.0]
    assert ticks == pytest.approx([0.2, 0.2, 0.2])


def test_tasks_see_one_thread_and_leave_the_rest_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert Work().map(lambda _: torch.get_num_threads(), [0]) == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_processes_give_the_numbers_of_one():
    same(fig4.run(TINY["fig4"], Work(jobs=2)), result("fig4"))


def test_a_dask_cluster_of_two_workers_gives_the_numbers_of_one_process():
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own: ports in use, clocks, closing sockets
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            open_work(backend="dask", scheduler=cluster.scheduler_address) as work,
        ):
            assert len(work.client.scheduler_info()["workers"]) == 2
            spread = fig4.run(TINY["fig4"], work)
    same(spread, result("fig4"))


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
