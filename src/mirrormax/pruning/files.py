"""Checkpoints in which zeros take one bit each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mirrormax._files import replacing

# Of a tensor that is kept sparse, a file holds the entries that are not zero, and a bit for each entry.
VALUES, MASK, SHAPES = "|values", "|mask", "mirrormax.sparse"


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
