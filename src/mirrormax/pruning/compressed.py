"""Layers in which zeros cost neither memory nor time, for inference on a CPU."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mirrormax._checks import number

LEAST = 0.7
"""The share of zeros from which torch's compressed rows are faster than a dense product with one token."""

MOST_LEFT = 0.9
"""How much of a matrix may be left for its empty rows and columns to be worth removing."""


class SparseLinear(nn.Module):
    """A linear layer that keeps the non-zero weights alone, as compressed sparse rows with 32-bit indices.

    Its outputs are those of the dense layer, up to the order of sums. The weight has no gradient.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these tensors unfinished
            found = layer.weight.detach().to_sparse_csr()
            rows, columns = found.crow_indices().int(), found.col_indices().int()
            weight = torch.sparse_csr_tensor(rows, columns, found.values(), found.shape)
        self.register_buffer("sparse", weight)

    @property
    def weight(self) -> Tensor:
        """The dense matrix, made anew at every call, for code that reads it in place of calling the layer."""
        return self.get_buffer("sparse").to_dense()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        weight = self.get_buffer("sparse")
        out = (weight @ rows[0])[None] if len(rows) == 1 else (weight @ rows.t()).t()
        out = out.reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    @property
    def bytes(self) -> int:
        """Of the weight."""
        weight = self.get_buffer("sparse")
        parts = (weight.values(), weight.col_indices(), weight.crow_indices())
        return sum(part.numel() * part.element_size() for part in parts)


class SmallerLinear(nn.Module):
    """A linear layer without its empty rows and columns: the same output from a smaller product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        there = layer.weight.detach() != 0
        self.register_buffer("rows", there.any(1).nonzero().flatten())
        self.register_buffer("columns", there.any(0).nonzero().flatten())
        rows, columns = self.get_buffer("rows"), self.get_buffer("columns")
        self.register_buffer("core", layer.weight.detach()[rows][:, columns].contiguous())

    @property
    def weight(self) -> Tensor:
        """The dense matrix, made anew at every call, for code that reads it in place of calling the layer."""
        core = self.get_buffer("core")
        dense = core.new_zeros(self.out_features, self.in_features)
        dense[self.get_buffer("rows")[:, None], self.get_buffer("columns")] = core
        return dense

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, weight = (self.get_buffer(name) for name in ("rows", "columns", "core"))
        part = x if len(columns) == self.in_features else x.index_select(-1, columns)
        out = part @ weight.t()
        if len(rows) < self.out_features:
            out = out.new_zeros((*out.shape[:-1], self.out_features)).index_copy_(-1, rows, out)
        return out if self.bias is None else out + self.bias

    @property
    def bytes(self) -> int:
        """Of the weight and of which rows and columns it has."""
        return sum(part.numel() * part.element_size() for part in self.buffers())


@dataclass
class Compressed:
    """What :func:`compress` put in, by path. While it lives, so do the dense layers, for :meth:`undo`."""

    model: nn.Module = field(repr=False)
    layers: dict[str, SparseLinear | SmallerLinear] = field(repr=False)
    dense: dict[str, nn.Linear] = field(repr=False)

    @property
    def bytes(self) -> tuple[int, int]:
        """Of the weights of these layers: dense, and compressed."""
        whole = sum(layer.weight.numel() * layer.weight.element_size() for layer in self.dense.values())
        return whole, sum(layer.bytes for layer in self.layers.values())

    def put(self) -> None:
        """Compute with the compressed layers (again)."""
        for path, layer in self.layers.items():
            self.model.set_submodule(path, layer)

    def undo(self) -> None:
        """Compute with the dense layers again."""
        for path, layer in self.dense.items():
            self.model.set_submodule(path, layer)


def compress(model: nn.Module, least: float = LEAST) -> Compressed:
    """Put layers that skip zeros in the place of pruned ``nn.Linear`` layers, for inference on a CPU.

    A layer loses its empty rows and columns (pruned heads, neurons) where they are a tenth of it or more; one in which
    at least the share ``least`` of what is left is zero keeps its non-zero weights alone. All others stay as they are.

    >>> from mirrormax.pruning import prune
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    >>> prune(model, 0.9).finish()
    >>> dense, sparse = compress(model).bytes
    >>> sparse < dense / 4
    True
    """
    least = number("least", least, at_least=0, below=1)
    layers: dict[str, SparseLinear | SmallerLinear] = {}
    dense: dict[str, nn.Linear] = {}
    for path, layer in model.named_modules():
        if "weight_orig" in layer._parameters:
            raise ValueError(f"{path} is still masked; call finish() on what prune returned first.")
        if type(layer) is not nn.Linear or not path or layer.weight.device.type != "cpu":
            continue
        smaller = _smaller(layer, least)
        if smaller is not None:
            layers[path], dense[path] = smaller, layer
    found = Compressed(model, layers, dense)
    found.put()
    return found


def _smaller(layer: nn.Linear, least: float) -> SparseLinear | SmallerLinear | None:
    there = layer.weight.detach() != 0
    core = int(there.any(1).sum()) * int(there.any(0).sum())
    if core and 1 - int(there.sum()) / core >= least and layer.weight.dtype in (torch.float32, torch.float64):
        return SparseLinear(layer)
    return SmallerLinear(layer) if core <= MOST_LEFT * there.numel() else None
