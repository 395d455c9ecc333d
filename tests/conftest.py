"""Settings for the whole suite: one thread per worker, and the same examples every time."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("mirrormax", deadline=None, derandomize=True, max_examples=40, print_blob=True)
settings.load_profile("mirrormax")


@pytest.fixture
def three_threads():
    """For torch, where the suite allows one."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
