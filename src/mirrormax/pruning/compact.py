"""Zeros that cost little: in files a bit each, in linear layers for inference on a CPU neither memory nor time."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax._checks import number
from mirrormax._files import replacing

# Of a tensor that is kept sparse, a file holds the entries that are not zero, and a bit for each entry.
VALUES, MASK, SHAPES = "|values", "|mask", "mirrormax.sparse"
LEAST = 0.7
"""The share of zeros from which compressed rows are clearly faster than a dense product, see docs/prune.md."""


class SparseLinear(nn.Module):
    """A linear layer that keeps its non-zero weights alone, in compressed rows (CSR) with 32-bit indices.

    Its outputs are those of the dense layer, up to the order of sums. The weight has no gradient.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these tensors unfinished
            rows = layer.weight.detach().to_sparse_csr()
        # Torch does not copy sparse tensors, but it does their parts.
        self.register_buffer("starts", rows.crow_indices().int())
        self.register_buffer("columns", rows.col_indices().int())
        self.register_buffer("values", rows.values())
        self.train(layer.training)

    def _rows(self) -> Tensor:
        starts, columns, values = map(self.get_buffer, ("starts", "columns", "values"))
        shape = self.out_features, self.in_features
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)

    @property
    def weight(self) -> Tensor:
        """The dense matrix, made anew at every call, for code that reads it in place of calling the layer."""
        return self._rows().to_dense()

    @property
    def bytes(self) -> int:
        """Of the weights and their indices."""
        return sum(part.numel() * part.element_size() for part in self.buffers(recurse=False))

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens = self._rows(), x.reshape(-1, self.in_features)
        out = (rows @ tokens[0])[None] if len(tokens) == 1 else (rows @ tokens.t()).t()
        out = out.reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


class Compressed(NamedTuple):
    """What :func:`compress` put in: the layers, by path, and the bytes of their weights, dense and sparse."""

    layers: tuple[str, ...]
    dense: int
    sparse: int


def compress(model: nn.Module, least: float = LEAST) -> Compressed:
    """Put a :class:`SparseLinear` in the place of every ``nn.Linear`` on the CPU that has at least this share of zeros.

    It is for inference in single or double precision, and happens in place.

    >>> from mirrormax import prune
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    >>> prune(model, 0.9).finish()
    >>> compressed = compress(model)
    >>> compressed.layers, compressed.sparse < compressed.dense / 4
    (('0', '2'), True)
    """
    least = number("least", least, at_least=0, below=1)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}.")
    dense: dict[str, nn.Linear] = {}
    for path, layer in model.named_modules():
        if "weight_orig" in layer._parameters:
            raise ValueError(f"{path or 'the model'} is still masked; call finish() on what prune returned first.")
        if path and type(layer) is nn.Linear and _is_sparse(layer.weight, least):
            dense[path] = layer
    sparse = {path: SparseLinear(layer) for path, layer in dense.items()}
    for path, layer in sparse.items():
        model.set_submodule(path, layer)
    before = sum(layer.weight.numel() * layer.weight.element_size() for layer in dense.values())
    return Compressed(tuple(sparse), before, sum(layer.bytes for layer in sparse.values()))


def _is_sparse(weight: Tensor, least: float) -> bool:
    single_or_double = weight.is_cpu and weight.dtype in (torch.float32, torch.float64)
    return single_or_double and int((weight == 0).sum()) >= least * weight.numel()


def save_sparse(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file (extra ``train``) in which zeros take one bit each, where that is smaller."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a state_dict, got {type(tensors).__name__}; give model.state_dict().")
    stored: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        kept = tensor.flatten() != 0
        if int(kept.sum()) * tensor.element_size() + -(-tensor.numel() // 8) < tensor.numel() * tensor.element_size():
            shapes[name] = list(tensor.shape)
            stored[f"{name}{VALUES}"] = tensor.flatten()[kept].contiguous()
            stored[f"{name}{MASK}"] = torch.from_numpy(np.packbits(kept.numpy()))
        else:
            stored[name] = tensor.contiguous().clone()
    with replacing(Path(path), SafetensorError) as temporary:
        save_file(stored, temporary, metadata={SHAPES: json.dumps(shapes)})


def load_sparse(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file that :func:`save_sparse` wrote, with their zeros: a ``state_dict``."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file that save_sparse wrote; name a file in it.")
    if not Path(path).exists():
        raise FileNotFoundError(f"the file {path} does not exist; check the path.")
    try:
        with safe_open(path, "pt") as file:
            shapes = json.loads((file.metadata() or {})[SHAPES])
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
            for name, shape in shapes.items():
                values, mask = stored.pop(f"{name}{VALUES}"), stored.pop(f"{name}{MASK}")
                whole = torch.zeros(shape, dtype=values.dtype)
                kept = torch.from_numpy(np.unpackbits(mask.numpy(), count=whole.numel())).bool()
                whole.view(-1)[kept] = values
                stored[name] = whole
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} was not written by save_sparse, or is damaged; save it again.") from error
    return stored
