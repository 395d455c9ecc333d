"""Problems on all cores: the answers, their order, and the settings of the process afterwards."""

import threading
import time

import pytest
import torch
from threadpoolctl import threadpool_info

from mirrormax.audit.parallel import on_all_cores


def blas_threads():
    return {one["filepath"]: one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_answers_come_in_the_order_of_the_items(three_threads):
    first_waits = threading.Event()

    def square(k):
        if k == 0:
            first_waits.wait(10)  # a later item is done first
        else:
            first_waits.set()
        return k * k

    assert list(on_all_cores(square, range(7))) == [k * k for k in range(7)]


def test_every_problem_has_one_thread_and_the_settings_come_back(three_threads):
    before = blas_threads()
    seen = list(on_all_cores(lambda _: (torch.get_num_threads(), *blas_threads().values()), range(4)))
    assert all(set(counts) == {1} for counts in seen)
    assert torch.get_num_threads() == 3
    assert blas_threads() == before


def test_an_error_is_raised_and_what_has_not_begun_is_left_undone(three_threads):
    begun = []

    def fail(k):
        begun.append(k)
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(on_all_cores(fail, range(300)))
    assert len(begun) < 300
    assert torch.get_num_threads() == 3
