"""What is pruned as one: single weights, rows (output neurons), or attention heads; and which of them are kept.

A unit's score is made of what its weights are worth, and a decision on units becomes masks on tensors again. Units
come in groups: one group for each tensor, or for each attention module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mirrormax._attention_names import PACKED_PARAMETERS, output_projection, separate_projections
from mirrormax.pruning.places import Place, matrix_shapes

HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")
"""How attention modules, or their configurations, call the number of their heads."""
SCOPES = ("global", "matrix", "row")
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Units:
    """Every weight is a unit: tensors by name, each as (outputs × inputs), to numbers for the units, and back."""

    shapes: Mapping[str, torch.Size]

    def rms(self, sizes: Tensors) -> dict[str, Tensor]:
        """The root mean square of each unit's weights."""
        return dict(sizes)

    def total(self, values: Tensors) -> dict[str, Tensor]:
        """The sum over each unit's weights: those whose zero alone makes the unit's output zero, each counted once."""
        return dict(values)

    def outputs(self) -> dict[str, tuple[str, int]]:
        """Layers whose inputs are outputs of units: which group of units, and how many stand side by side."""
        return {}

    def masks(self, keep: Tensors) -> dict[str, Tensor]:
        """From which units are kept to which weights are."""
        return dict(keep)


class Rows(Units):
    """Every row is a unit."""

    def rms(self, sizes: Tensors) -> dict[str, Tensor]:
        return {name: size.double().square().mean(1).sqrt() for name, size in sizes.items()}

    def total(self, values: Tensors) -> dict[str, Tensor]:
        return {name: value.double().sum(1) for name, value in values.items()}

    def masks(self, keep: Tensors) -> dict[str, Tensor]:
        return {name: kept[:, None].expand(self.shapes[name]) for name, kept in keep.items()}


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """Where the heads of one attention module lie.

    ``rows`` says of every tensor of queries, keys and values which of its rows are a head's, as (heads × rows); rows of
    keys and values that several heads share are those of each. ``values`` is this for the tensor of values, and for
    values alone. ``output`` is the layer whose columns the heads share one after the other, if it was found.
    """

    heads: int
    rows: Mapping[str, Tensor]
    values: tuple[str, Tensor]
    output: str | None


@dataclass(frozen=True, eq=False)
class Heads(Units):
    """Every attention head is a unit, a group for each attention module."""

    modules: Mapping[str, AttentionHeads]

    def rms(self, sizes: Tensors) -> dict[str, Tensor]:
        """Over a head's rows of queries, keys and values."""
        means = {}
        for path, module in self.modules.items():
            parts = [_of_heads(rows, sizes[name].double().square().sum(1)) for name, rows in module.rows.items()]
            count = sum(int(rows[0].sum()) * self.shapes[name][1] for name, rows in module.rows.items())
            means[path] = (torch.stack(parts).sum(0) / count).sqrt()
        return means

    def total(self, values: Tensors) -> dict[str, Tensor]:
        """Over a head's columns of the output layer; where that is not known, over its rows of values."""
        totals = {}
        for path, module in self.modules.items():
            if module.output is not None:
                totals[path] = values[module.output].unflatten(1, (module.heads, -1)).double().sum((0, 2))
            else:
                name, rows = module.values
                totals[path] = _of_heads(rows, values[name].double().sum(1))
        return totals

    def outputs(self) -> dict[str, tuple[str, int]]:
        return {
            module.output: (path, module.heads) for path, module in self.modules.items() if module.output is not None
        }

    def masks(self, keep: Tensors) -> dict[str, Tensor]:
        """Rows that heads share go when all of these do."""
        masks = {}
        for path, module in self.modules.items():
            for name, rows in module.rows.items():
                masks[name] = (_of_heads(rows.t(), keep[path].double()) > 0)[:, None].expand(self.shapes[name])
            if module.output is not None:
                shape = self.shapes[module.output]
                masks[module.output] = keep[path].repeat_interleave(shape[1] // module.heads)[None].expand(shape)
        return masks


def _of_heads(rows: Tensor, values: Tensor) -> Tensor:
    return rows.to(values) @ values


def find_units(model: nn.Module, places: Mapping[str, Place], structured: str | None) -> Units:
    """The units of ``structured``: None and n:m prune entries, "row" rows, "head" heads."""
    shapes = matrix_shapes(places)
    if structured != "head":
        return Rows(shapes) if structured == "row" else Units(shapes)
    attentions = ((path, _attention_heads(path, module, shapes)) for path, module in model.named_modules())
    modules = {path: attention for path, attention in attentions if attention is not None}
    if not modules:
        raise ValueError(
            f"no heads were found in {type(model).__name__}: structured='head' needs nn.MultiheadAttention, or modules "
            "with query, key and value layers and a number of heads; use structured='row'."
        )
    return Heads(shapes, modules)


def _attention_heads(path: str, module: nn.Module, shapes: Mapping[str, torch.Size]) -> AttentionHeads | None:
    """The heads of a module, as far as its tensors are among ``shapes``; None where it has none."""
    holders = (module, getattr(module, "config", None))
    counts = (getattr(holder, name, None) for holder in holders for name in HEADS)
    heads = next((count for count in counts if isinstance(count, int)), None)
    if heads is None:
        return None
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        named = {f"{prefix}{name}": 3 if name == "in_proj_weight" else 1 for name in PACKED_PARAMETERS}
    else:
        named = {f"{prefix}{name}.weight": 1 for name in separate_projections(module) or ()}
    stacked = {name: count for name, count in named.items() if name in shapes}  # matrices in one tensor
    if not stacked:
        return None
    first, last = next(iter(stacked)), list(stacked)[-1]
    size, rest = divmod(shapes[first][0], stacked[first] * heads)
    if rest or size == 0:
        return None
    rows = {}
    for name, count in stacked.items():
        blocks, rest = divmod(shapes[name][0], count * size)  # fewer than heads where these share keys and values
        if rest or heads % blocks:
            return None
        block_of_row = torch.arange(shapes[name][0]) // size % blocks
        rows[name] = torch.arange(heads)[:, None] // (heads // blocks) == block_of_row
    values = rows[last].clone()
    values[:, : values.shape[1] // stacked[last] * (stacked[last] - 1)] = False
    output = _output_name(path, module)
    fits = output in shapes and shapes[output][1] == heads * size
    return AttentionHeads(heads, rows, (last, values), output if fits else None)


def _output_name(path: str, module: nn.Module) -> str:
    """Where the layer behind the heads is: a child of the module, or, as BERT has it, ``output.dense`` beside it."""
    layer = output_projection(module)
    for name, child in module.named_children():
        if child is layer or (name == "output" and isinstance(child, nn.Linear)):
            return f"{path}.{name}.weight" if path else f"{name}.weight"
    parent, dot, _ = path.rpartition(".")
    return f"{parent}{dot}output.dense.weight"


def kept_units(
    scores: Mapping[str, Tensor], share: float, scope: str, pattern: tuple[int, int] | None
) -> dict[str, Tensor]:
    """True for all but the ⌊share·n⌋ lowest of n scores: of all tensors together, of each, or of each row of each; by a
    pattern (n, m), for the n highest of every m that stand one after the other in a row."""
    if pattern is not None:
        n, m = pattern
        return {name: above(score.reshape(-1, m), 1 - n / m).view(score.shape) for name, score in scores.items()}
    if scope == "row":
        return {name: above(score, share) for name, score in scores.items()}
    if scope == "matrix":
        return {name: above(score.reshape(1, -1), share).view(score.shape) for name, score in scores.items()}
    together = above(torch.cat([score.flatten() for score in scores.values()])[None], share)[0]
    parts = together.split([score.numel() for score in scores.values()])
    return {name: part.view(score.shape) for (name, score), part in zip(scores.items(), parts, strict=True)}


def above(scores: Tensor, share: float) -> Tensor:
    """Of scores (groups, n): True in each group for all but its ⌊share·n⌋ lowest; of equals, the first are pruned."""
    count = int(share * scores.shape[1] + 1e-9)
    if count == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    last = scores.kthvalue(count, 1).values[:, None]  # without sorting, which takes several times the memory
    kept = scores > last
    rows, columns = (scores == last).nonzero(as_tuple=True)  # at the threshold: as many go as are still missing
    ties = torch.bincount(rows, minlength=len(scores))
    rank = torch.arange(len(rows), device=rows.device) - (ties.cumsum(0) - ties)[rows]
    missing = count - (scores < last).sum(1)
    kept[rows, columns] = rank >= missing[rows]
    return kept
