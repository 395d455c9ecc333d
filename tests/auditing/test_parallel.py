"""Heads' problems on all cores, with no further threads within."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from threadpoolctl import threadpool_info

from mirrormax.auditing.run import on_all_cores


def blas_threads():
    return {one["filepath"]: one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_as_many_run_at_a_time_as_torch_may_use(three_threads):
    together = threading.Barrier(3)
    assert set(on_all_cores(lambda _: together.wait(10) >= 0, range(6))) == {True}


def test_every_problem_has_one_thread_and_the_settings_come_back(three_threads):
    before = blas_threads()
    seen = list(on_all_cores(lambda k: (k, torch.get_num_threads(), *blas_threads().values()), range(4)))
    assert [k for k, *_ in seen] == [0, 1, 2, 3]
    assert all(set(counts) == {1} for _, *counts in seen)
    assert torch.get_num_threads() == 3
    assert blas_threads() == before
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == 3
