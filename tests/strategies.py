"""Hypothesis strategies for weights and exponents."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

exponents = st.floats(1.01, 50.0)
moderate_exponents = st.floats(1.05, 6.0)


def matrices(d: int = 3, largest: float = 10.0, smallest: float = 1e-3) -> st.SearchStrategy[torch.Tensor]:
    """float64 (d, d) matrices whose entries are zero or between ``smallest`` and ``largest`` in size."""
    sizes = st.floats(smallest, largest)
    entries = st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x))
    return hnp.arrays(np.float64, (d, d), elements=entries).map(torch.from_numpy)


def nonzero_matrices(d: int = 3, **bounds: float) -> st.SearchStrategy[torch.Tensor]:
    return matrices(d, **bounds).filter(lambda w: bool((w != 0).any()))
