"""Tasks on all cores: the answers, their order, and the settings of the process afterwards."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mirrormax._parallel import AHEAD, on_all_cores


def test_answers_come_in_the_order_of_the_items(three_threads):
    first_waits = threading.Event()

    def square(k):
        if k == 0:
            first_waits.wait(10)  # a later item is done first
        else:
            first_waits.set()
        return k * k

    assert list(on_all_cores(square, range(7))) == [k * k for k in range(7)]


def test_as_many_run_at_a_time_as_torch_may_use(three_threads):
    together = threading.Barrier(3)
    assert set(on_all_cores(lambda _: together.wait(10) >= 0, range(6))) == {True}


@pytest.mark.parametrize("slow", [0, 5])
def test_a_slow_task_lets_some_others_go_ahead_but_not_all(slow, three_threads):
    done = []

    def work(k):
        if k == slow:
            time.sleep(0.5)
        done.append(k)
        return len(done)

    answers = list(on_all_cores(work, range(100)))
    assert 3 <= answers[slow] <= slow + AHEAD * 3 + 3


def test_every_task_has_one_thread_and_the_setting_comes_back(three_threads):
    assert set(on_all_cores(lambda _: torch.get_num_threads(), range(4))) == {1}
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == 3


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
