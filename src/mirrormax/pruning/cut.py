"""Cut weights out of a trained model: in place, through torch's own pruning masks, and undoable.

Below what is called stands how masks are chosen: they leave out the smallest entries, rows or heads of all tensors
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as masks

from mirrormax._attention_names import PACKED_PARAMETERS, output_projection, separate_projections
from mirrormax._checks import number
from mirrormax.optim import param_groups
from mirrormax.pruning.margins import margin_gradients

HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")
"""How attention modules call the number of their heads."""


@dataclass
class Pruned:
    """What was cut: for each tensor, how many of its entries are zero now and how many it has."""

    model: nn.Module = field(repr=False)
    tensors: dict[str, tuple[int, int]]

    @property
    def share(self) -> float:
        """The share of the entries of these tensors that is cut."""
        return sum(cut for cut, _ in self.tensors.values()) / max(1, sum(size for _, size in self.tensors.values()))

    def undo(self) -> None:
        """Put back all that was ever cut from these tensors, with what training has made of it since."""
        for module, name in self._places():
            _forget_mask(module, name)
            weight = module._parameters.pop(f"{name}_orig")
            module.register_parameter(name, weight)

    def finish(self) -> None:
        """Make the zeros part of the weights: no masks are left, and nothing can be undone."""
        for module, name in self._places():
            weight = module._parameters[f"{name}_orig"]
            mask = module._buffers[f"{name}_mask"]
            assert weight is not None
            assert mask is not None
            with torch.no_grad():
                weight.mul_(mask)
            _forget_mask(module, name)
            module.register_parameter(name, module._parameters.pop(f"{name}_orig"))

    def _places(self) -> Iterator[tuple[nn.Module, str]]:
        for full in self.tensors:
            path, _, name = full.rpartition(".")
            module = self.model.get_submodule(path)
            if f"{name}_orig" not in module._parameters:
                raise ValueError(f"{full} has no mask any more; it was undone or finished before.")
            yield module, name


def prune(
    model: nn.Module,
    share: float,
    scope: Literal["matrices", "attention"] | Sequence[str] = "matrices",
    by: Literal["magnitude", "margin"] | Mapping[str, Tensor] = "magnitude",
    structured: Literal["row", "head"] | None = None,
    *,
    batches: Iterable[Any] | None = None,
) -> Pruned:
    r"""Set the smallest ``share`` of a model's weights to zero, in place, and keep them there while it trains on.

    The masks are those of ``torch.nn.utils.prune``: the parameter (the same object, so optimizers keep it) is
    ``weight_orig`` from now on, ``weight`` is its product with ``weight_mask``, and what is cut gets no gradient.
    What was cut before counts: cutting 0.5 and later 0.8 leaves a fifth.

    ``by="margin"`` asks instead what a weight brings to the margins of the model's heads on ``batches``. A head
    whose scores for a query are s selects the token with the largest, s*, which leads the others by s* − s_t, and

    .. code-block:: text

        log p* = −log Σ_t exp(−(s* − s_t))       the smooth minimum of its leads (t = * included): its
                                                 log-probability under the softmax
        M      = the mean of log p* over layers, in each over heads, texts and queries with a rival
        S(w)   = |w| √(mean over batches of (∂M/∂w)²)

    S is, to first order, by how much M changes in a batch if w is set to zero. Gradients of matrices of different
    layers are not alike in size, and those behind the last softmax have none; so S orders the entries of each matrix
    alone, and the entry that is r-th in this order stands in for the r-th smallest |w|. Each matrix then loses as many
    entries as by magnitude, but others; a matrix that no margin depends on loses the same ones.

    Args:
        model: the model.
        share: in [0, 1), of all entries (rows, heads) of all tensors in scope together.
        scope: ``"matrices"`` (all but embeddings and output heads) or ``"attention"``, as
            :func:`mirrormax.param_groups` finds them, or shell patterns over full parameter names.
        by: ``"magnitude"``: entries by |w|, rows and heads by their root mean square. ``"margin"``: the same of what
            stands in for |w|, as said above. Or what :func:`margin_scores` returned, for several cuts of one model.
        structured: None cuts entries; ``"row"`` whole rows (output neurons; of convolutions, filters);
            ``"head"`` whole heads, that is their rows in queries, keys and values, and their columns in the
            output layer where it is one of the same module. It needs modules that say how many heads they have.
        batches: with ``by="margin"``, what to call the model on: mappings of keyword arguments (``"labels"`` is left
            out), tuples of positional ones, or tensors. A few dozen texts or images do.

    Returns:
        What was cut, with ``undo()`` and ``finish()``.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    >>> cut = prune(model, 0.75)
    >>> cut.share, int((model[0].weight == 0).sum() + (model[2].weight == 0).sum())
    (0.75, 96)
    >>> cut.undo()
    >>> int((model[0].weight == 0).sum())
    0
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}.")
    share = number("share", share, at_least=0, below=1)
    if structured not in (None, "row", "head"):
        raise ValueError(f"structured must be None, 'row' or 'head', got {structured!r}.")
    _check_by(by, batches)
    places = _in_scope(model, scope)
    weights = _weights(places)
    _refuse_shared(model, weights)
    if by == "margin":
        by = margin_scores(model, batches or (), scope)
    with torch.no_grad():
        now = {name: getattr(module, own).detach() for name, (module, own) in places.items()}
        sizes = {name: weight.abs() for name, weight in now.items()}
        if isinstance(by, Mapping):
            sizes = {name: _ranked(size, by[name]) if name in by else size for name, size in sizes.items()}
        keep = _smallest_heads(model, sizes, share) if structured == "head" else _smallest(sizes, share, structured)
    for name, mask in keep.items():
        module, own = places[name]
        if _is_masked(module, own):
            module._buffers[f"{own}_mask"] = mask & (module.get_buffer(f"{own}_mask") != 0)
            setattr(module, own, module.get_parameter(f"{own}_orig") * module.get_buffer(f"{own}_mask"))
        else:
            masks.custom_from_mask(module, own, mask)
        module._buffers[f"{own}_mask"] = module.get_buffer(f"{own}_mask").to(weights[name].dtype)
    _let_attention_see_its_output_mask(model)
    cut = {name: (int((module.get_buffer(f"{own}_mask") == 0).sum()), weights[name].numel())
           for name, (module, own) in places.items() if name in keep}  # fmt: skip
    return Pruned(model, cut)


def margin_scores(
    model: nn.Module, batches: Iterable[Any], scope: Literal["matrices", "attention"] | Sequence[str] = "matrices"
) -> dict[str, Tensor]:
    """S(w) of :func:`prune` with ``by="margin"``, by full name, for all tensors in scope that a margin depends on."""
    places = _in_scope(model, scope)
    found = margin_gradients(model, _weights(places), batches)
    with torch.no_grad():
        return {name: getattr(*places[name]).detach().abs() * found[name] for name in found}


def _check_by(by: object, batches: Iterable[Any] | None) -> None:
    if by == "margin":
        if batches is None:
            raise ValueError(
                "by='margin' measures what weights bring to margins on data, got batches=None; give a few batches of "
                "the model's inputs."
            )
    elif by != "magnitude" and not isinstance(by, Mapping):
        raise ValueError(f"by must be 'magnitude', 'margin' or the result of margin_scores, got {by!r}.")
    elif batches is not None:
        raise ValueError(f"batches are for by='margin', got by={by if isinstance(by, str) else 'scores'!r}; drop them.")


def _weights(places: dict[str, tuple[nn.Module, str]]) -> dict[str, nn.Parameter]:
    """The parameters themselves, without what masks make of them."""
    return {name: module.get_parameter(f"{own}_orig") if _is_masked(module, own) else module.get_parameter(own)
            for name, (module, own) in places.items()}  # fmt: skip


def _in_scope(model: nn.Module, scope: str | Sequence[str]) -> dict[str, tuple[nn.Module, str]]:
    """Full name, as it was before any cut, to the module that holds the tensor and its name there."""
    places = {}
    for path, module in model.named_modules():
        for own, param in module._parameters.items():
            if param is not None:
                own = own.removesuffix("_orig") if f"{own.removesuffix('_orig')}_mask" in module._buffers else own
                places[f"{path}.{own}" if path else own] = module, own
    if scope in ("matrices", "attention"):
        chosen = {id(param) for param in param_groups(model, scope=scope)[0]["params"]}  # type: ignore[arg-type]
        found = {}
        for name, (module, own) in places.items():
            param = module._parameters.get(f"{own}_orig" if _is_masked(module, own) else own)
            if id(param) in chosen:
                found[name] = module, own
        return found
    if isinstance(scope, str):
        raise ValueError(f"scope must be 'matrices', 'attention' or a list of patterns, got {scope!r}.")
    for pattern in scope:
        if not any(fnmatchcase(name, pattern) for name in places):
            raise ValueError(f"the scope pattern {pattern!r} matches no parameter; names look like {list(places)[:1]}.")
    return {name: place for name, place in places.items() if any(fnmatchcase(name, pattern) for pattern in scope)}


def _is_masked(module: nn.Module, own: str) -> bool:
    return f"{own}_orig" in module._parameters


def _refuse_shared(model: nn.Module, weights: dict[str, nn.Parameter]) -> None:
    holders: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(param), []).append(name)
    for name, weight in weights.items():
        if len(holders[id(weight)]) > 1:
            raise ValueError(
                f"{name} is shared ({', '.join(holders[id(weight)])}), and a mask would part it; leave it out of scope."
            )


def _forget_mask(module: nn.Module, name: str) -> None:
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, masks.BasePruningMethod) and hook._tensor_name == name:
            del module._forward_pre_hooks[key]
    del module._buffers[f"{name}_mask"]
    delattr(module, name)


class _OutputMask:
    """nn.MultiheadAttention multiplies by its output weight without calling the layer, whose mask would not be seen."""

    def __call__(self, attention: nn.MultiheadAttention, inputs: object) -> None:
        layer = attention.out_proj
        if _is_masked(layer, "weight"):
            layer.weight = layer.get_parameter("weight_orig") * layer.get_buffer("weight_mask")


def _let_attention_see_its_output_mask(model: nn.Module) -> None:
    for module in model.modules():
        if not isinstance(module, nn.MultiheadAttention) or not _is_masked(module.out_proj, "weight"):
            continue
        if not any(isinstance(hook, _OutputMask) for hook in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(_OutputMask())


def _ranked(size: Tensor, score: Tensor) -> Tensor:
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


def _smallest(sizes: dict[str, Tensor], share: float, structured: str | None) -> dict[str, Tensor]:
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


def _smallest_heads(model: nn.Module, now: dict[str, Tensor], share: float) -> dict[str, Tensor]:
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
