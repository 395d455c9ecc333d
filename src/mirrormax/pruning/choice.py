"""What to keep: masks that leave out the smallest entries, rows or heads of all tensors together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrormax._attention_names import PACKED_PARAMETERS, output_projection, separate_projections

HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")
"""How attention modules call the number of their heads."""


def ranked(size: Tensor, score: Tensor) -> Tensor:
    """The sizes of a tensor in the order of its scores: its r-th smallest size at its r-th smallest score.

    Of equal scores the smaller size comes first, so that nothing changes where all are equal.
    """
    if score.shape != size.shape:
        raise ValueError(f"scores of shape {tuple(score.shape)} are not those of a tensor {tuple(size.shape)}.")
    ordered, by_size = size.flatten().sort(stable=True)
    by_score = by_size[score.flatten()[by_size].sort(stable=True).indices]
    found = torch.empty_like(ordered)
    found[by_score] = ordered
    return found.view(size.shape)


def smallest(sizes: dict[str, Tensor], share: float, structured: str | None) -> dict[str, Tensor]:
    """Masks that leave out the smallest entries, or rows, of all tensors together."""
    parts = {
        name: _rms(size.flatten(1), 1) if structured == "row" and size.ndim > 1 else size
        for name, size in sizes.items()
    }
    kept = _above(torch.cat([part.flatten() for part in parts.values()]), share)
    found = {}
    for (name, part), mask in zip(parts.items(), kept.split([p.numel() for p in parts.values()]), strict=True):
        shape = sizes[name].shape
        found[name] = mask.view(part.shape if part.shape == shape else (-1, *[1] * (len(shape) - 1))).expand(shape)
    return found


def _rms(size: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    return size.double().square().mean(dims).sqrt()


def _above(sizes: Tensor, share: float) -> Tensor:
    """True for all but the ⌊share·n⌋ smallest; of equals, the first are cut first."""
    count = int(share * sizes.numel() + 1e-9)
    if count == 0:
        return torch.ones_like(sizes, dtype=torch.bool)
    last = sizes.kthvalue(count).values  # without the order of all of them, which takes several times their memory
    kept = ~(sizes <= last)
    equal = (sizes == last).nonzero().flatten()
    kept[equal[count - int((sizes < last).sum()) :]] = True
    return kept


def smallest_heads(model: nn.Module, now: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """The same of heads; ``now`` holds the sizes of all tensors in scope."""
    rows: list[tuple[list[tuple[str, int]], str | None, int]] = []
    sizes: list[Tensor] = []
    for path, module in model.named_modules():
        tensors = _head_tensors(path, module, now)
        if tensors is None:
            continue
        heads, parts, output = tensors
        blocks = [now[name].reshape(thirds * heads, -1) for name, thirds in parts]
        sizes.append(_rms(torch.cat([b.view(-1, heads, b.shape[1]) for b in blocks]), (0, 2)))
        rows.append((parts, output, heads))
    if not sizes:
        raise ValueError(
            f"no heads were found in {type(model).__name__}: structured='head' needs nn.MultiheadAttention, or modules "
            "with query, key and value layers of one size and a number of heads; use structured='row'."
        )
    kept = _above(torch.cat(sizes), share).split([len(size) for size in sizes])
    found: dict[str, Tensor] = {}
    for (parts, output, heads), keep in zip(rows, kept, strict=True):
        for name, thirds in parts:
            weight = now[name]
            block = keep.repeat(thirds).repeat_interleave(weight.shape[0] // (thirds * heads))
            found[name] = block[:, None].expand_as(weight)
        if output is not None:
            weight = now[output]
            found[output] = keep.repeat_interleave(weight.shape[1] // heads)[None].expand_as(weight)
    return found


def _head_tensors(
    path: str, module: nn.Module, now: dict[str, Tensor]
) -> tuple[int, list[tuple[str, int]], str | None] | None:
    """How many heads a module has, the tensors whose rows they share (and how many parts are stacked in each), and
    the output layer whose columns they share."""
    heads = next((h for h in (getattr(module, name, None) for name in HEADS) if isinstance(h, int)), None)
    prefix = f"{path}." if path else ""
    parts: list[tuple[str, int]] = []
    if heads is None:
        return None
    if isinstance(module, nn.MultiheadAttention):
        parts = [(f"{prefix}{name}", 3 if name == "in_proj_weight" else 1) for name in PACKED_PARAMETERS]
    else:
        separate = separate_projections(module)
        parts = [(f"{prefix}{name}.weight", 1) for name in separate or ()]
    parts = [(name, thirds) for name, thirds in parts if name in now]
    if not parts or len({now[name].shape[0] // thirds for name, thirds in parts}) > 1:
        return None
    if any(now[name].shape[0] % (thirds * heads) for name, thirds in parts):
        return None
    layer = output_projection(module)
    output = next((f"{prefix}{name}.weight" for name, child in module.named_children() if child is layer), None)
    return heads, parts, output if output in now and now[output].shape[1] % heads == 0 else None
