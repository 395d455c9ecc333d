"""Tasks on all cores: the answers, their order, and the settings of the process afterwards."""

import threading
import time

import pytest
import torch

from mirrormax._threads import on_all_cores


def test_answers_come_in_the_order_of_the_items(three_threads):
    first_waits = threading.Event()

    def square(k):
        if k == 0:
            first_waits.wait(10)  # a later item is done first
        else:
            first_waits.set()
        return k * k

    assert list(on_all_cores(square, range(7))) == [k * k for k in range(7)]


def test_every_task_has_one_thread_and_the_setting_comes_back(three_threads):
    assert set(on_all_cores(lambda _: torch.get_num_threads(), range(4))) == {1}
    assert torch.get_num_threads() == 3


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
