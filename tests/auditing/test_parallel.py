"""Heads' problems on all cores, with no further threads within."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from audited_models import text_model
from threadpoolctl import threadpool_info, threadpool_limits

import mirrormax
from mirrormax._parallel import on_cluster
from mirrormax.auditing.margins import on_all_cores


def blas_threads():
    return {one["filepath"]: one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_as_many_run_at_a_time_as_torch_may_use(three_threads):
    together = threading.Barrier(3)
    assert set(on_all_cores(lambda _: together.wait(10) >= 0, range(6))) == {True}


def test_every_problem_has_one_thread_and_the_settings_come_back(three_threads):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        assert 2 in before.values()
        seen = list(on_all_cores(lambda k: (k, torch.get_num_threads(), *blas_threads().values()), range(4)))
        assert [k for k, *_ in seen] == [0, 1, 2, 3]
        assert all(set(counts) == {1} for _, *counts in seen)
        assert torch.get_num_threads() == 3
        assert blas_threads() == before
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == 3


def test_heads_are_spread_over_a_dask_cluster_with_the_same_answers():
    distributed = pytest.importorskip("distributed")
    texts = torch.randint(1, 20, (40, 7), generator=torch.Generator().manual_seed(3))
    model, options = text_model(), {"samples": 40, "scan": (1.5,), "settle": 0.9}
    alone = mirrormax.audit(model, [texts], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own: ports in use, clocks, closing sockets
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            tasks = []
            submit = client.submit
            client.submit = lambda *args, **kwargs: tasks.append(args) or submit(*args, **kwargs)
            spread = mirrormax.audit(model, [texts], **options, client=client)
    # 4 heads at 16, 32 and 40 rows and for the scan, 4 controls
    assert len(tasks) == 4 * 3 + 4 + 4
    assert spread.heads == alone.heads
    assert spread.controls == alone.controls
    assert spread.growth == alone.growth


def test_a_cluster_is_never_handed_more_than_it_can_hold():
    class Done:
        def __init__(self, answer):
            self.answer = answer

        def result(self):
            return self.answer

    class Client:
        given = 0

        def submit(self, run, function, item, pure):
            self.given += 1
            return Done(function(item))

        def cancel(self, futures):
            self.left = len(futures)

    client, seen = Client(), []
    for answer in on_cluster(client, lambda item: item * item, iter(range(10)), ahead=3):
        seen.append(answer)
        assert client.given <= len(seen) + 3
    assert seen == [k * k for k in range(10)]
    assert client.left == 0
