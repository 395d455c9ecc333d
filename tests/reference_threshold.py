"""The weights of a target in their plainest form, entry by entry."""

import math

import torch


def reference_threshold(duals, share, scope="global"):
    """The weights of a target: each |u| behind the firm threshold at its quantile, group by group of what is compared.

    ``scope`` is that of the optimizers, or ``"n:m"``, where ``share`` is the part of the final threshold.
    """
    kept, of = map(int, scope.split(":")) if ":" in scope else (0, 0)
    if scope == "global":
        parts = [list(duals)]
    elif scope == "matrix":
        parts = [[u] for u in duals]
    else:
        parts = [[part] for u in duals for row in u for part in row.flatten().split(of or row.numel())]
    flat = []
    for part in parts:
        sizes = sorted(abs(float(x)) for u in part for x in u.flatten())
        count = of - kept if of else round(share * len(sizes))
        lam = (sizes[count - 1] if count else 0.0) * (share if of else 1.0)
        flat += [firm(float(x), lam) for u in part for x in u.flatten()]
    sizes_of = [u.numel() for u in duals]
    pieces = torch.tensor(flat, dtype=torch.float64).split(sizes_of)
    return [piece.view(u.shape) for piece, u in zip(pieces, duals, strict=True)]


def firm(u, lam):
    if abs(u) <= lam:
        return 0.0
    return u if abs(u) > 3 * lam else math.copysign(1.5 * (abs(u) - lam), u)
