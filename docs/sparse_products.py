"""Time of sparse products with one token over that of dense ones, for the shapes of SmolLM2."""

import time
import warnings

import numba
import numpy as np
import torch

SHAPES = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
BLOCKS, ROUNDS = 30, 5


@numba.njit(fastmath=True)
def product(values, columns, starts, x, y):
    """y = W x from compressed rows, in four sums."""
    for row in range(y.shape[0]):
        a = b = c = d = np.float32(0)
        k, end = starts[row], starts[row + 1]
        while k + 3 < end:
            a += values[k] * x[columns[k]]
            b += values[k + 1] * x[columns[k + 1]]
            c += values[k + 2] * x[columns[k + 2]]
            d += values[k + 3] * x[columns[k + 3]]
            k += 4
        while k < end:
            a += values[k] * x[columns[k]]
            k += 1
        y[row] = a + b + c + d


def best(multiply, matrices, tokens):
    """The least seconds for all products, of several rounds after one that does not count."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for matrix, x in zip(matrices, tokens, strict=True):
            multiply(matrix, x)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def by_numba(packed, x):
    """One product by the kernel."""
    values, columns, starts = packed
    product(values, columns, starts, x.numpy(), torch.empty(len(starts) - 1).numpy())


def main():
    """Print a row for each share of zeros."""
    warnings.simplefilter("ignore")  # torch calls sparse tensors unfinished
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for share in (0.5, 0.8, 0.9):
        dense = [torch.randn(shape, generator=generator) for _ in range(BLOCKS) for shape in SHAPES]
        dense = [w * (torch.rand(w.shape, generator=generator) > share) for w in dense]
        tokens = [torch.randn(w.shape[1], generator=generator) for w in dense]
        wide = [w.to_sparse_csr() for w in dense]
        parts = [(w.crow_indices().int(), w.col_indices().int(), w.values()) for w in wide]
        narrow = [torch.sparse_csr_tensor(*part, w.shape) for part, w in zip(parts, wide, strict=True)]
        packed = [(v.numpy(), c.numpy().astype(np.uint16), s.numpy()) for s, c, v in parts]
        whole = best(torch.mv, dense, tokens)
        ways = {
            "32-bit rows": best(torch.mv, narrow, tokens),
            "64-bit rows": best(torch.mv, wide, tokens),
            "numba": best(by_numba, packed, tokens),
        }
        print(f"{share:.0%}", {name: round(seconds / whole, 2) for name, seconds in ways.items()})


if __name__ == "__main__":
    main()
