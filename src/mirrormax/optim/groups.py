"""Which parameters of a model are its attention weights, or the matrices of its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from mirrormax._attention_names import PACKED, PACKED_PARAMETERS, PROJECTIONS, partly_known

# How embeddings and output heads are called, as whole words of a name.
EMBEDDINGS = ("embed", "embedding", "embeddings", "emb", "wte", "wpe", "tokens", "positions", "position", "pos", "cls")
HEADS = ("head", "heads", "lm_head", "classifier", "classify", "score", "logits", "readout", "unembed", "decoder_head")


class ParamGroups(list[dict[str, Any]]):
    """Parameter groups that say what went where; an optimizer takes them as any list."""

    def __repr__(self) -> str:
        lines = []
        for group in self:
            params = group["params"]
            options = ", ".join(f"{k}={v!r}" for k, v in group.items() if k not in ("name", "params", "param_names"))
            count = sum(param.numel() for param in params)
            lines.append(f"{group['name']}({options}): {len(params)} tensors, {count:,} numbers")
            for name, param in zip(group["param_names"], params, strict=True):
                lines.append(f"    {name} {tuple(param.shape)}")
        return "\n".join(lines)


def param_groups(
    model: nn.Module,
    attention: Mapping[str, Any] | None = None,
    rest: Mapping[str, Any] | None = None,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    scope: Literal["attention", "matrices"] = "attention",
    matrices: Mapping[str, Any] | None = None,
) -> ParamGroups:
    """Split a model's parameters into its attention weights and the rest, each with its own options.

    ``scope="matrices"`` takes all matrices of the model's layers instead (also convolutions), without
    embeddings, which are those of ``nn.Embedding``, tensors that lie free in a module, and what is called so; and
    without output heads, which are layers called ``head``, ``lm_head``, ``classifier`` or ``score``, and whatever
    shares its weights with an embedding.

    Attention weights are the matrices that make queries, keys and values: those of
    ``nn.MultiheadAttention``, and those of the layers called as Hugging Face, timm and others call them
    (``query``, ``k_proj``, ``qkv``, ``c_attn`` …), with their low-rank adapters and reparametrisations.
    A name like ``value`` counts only beside a ``query`` or ``key``, or within a module named for
    attention. Biases and output projections are rest. Look at the ``repr``.

    Args:
        model: the model.
        attention: options of the attention group, such as ``dict(p=1.1, lr=1e-3)``.
        rest: options of the other group.
        include: shell patterns over full parameter names, such as ``"*.out_proj.weight"``, to add.
        exclude: patterns to take away again; they outrank everything.
        scope: ``"attention"`` or ``"matrices"``, what the first group holds.
        matrices: options of the first group if ``scope="matrices"``.

    Returns:
        Groups named ``"attention"`` (or ``"matrices"``) and ``"rest"`` (where not empty), with the names of their
        parameters under ``"param_names"``. Every parameter is in one of them, a shared one once. Any optimizer takes
        them, and their ``repr`` lists what went where.

    >>> groups = param_groups(nn.TransformerEncoderLayer(8, 2), attention=dict(p=1.1, lr=0.01))
    >>> [(group["name"], len(group["params"])) for group in groups]
    [('attention', 1), ('rest', 11)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}; pass the model, not its parameters.")
    if scope not in ("attention", "matrices"):
        raise ValueError(f"scope must be 'attention' or 'matrices', got {scope!r}.")
    scopes = {
        "attention": (attention, _projections, "attention weights"),
        "matrices": (matrices, _matrices, "matrices of layers"),
    }
    main, find, what = scopes.pop(scope)
    ((other, (unused, *_)),) = scopes.items()
    if unused is not None:
        raise ValueError(f"{other}={unused!r} needs scope={other!r}, got scope={scope!r}; pass {scope}= instead.")
    for argument, options in ((scope, main), ("rest", rest)):
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"{argument} must be a dict of options, got {options!r}; write {argument}=dict(p=1.1).")
    named = list(model.named_parameters())
    for argument, patterns in (("include", include), ("exclude", exclude)):
        _check_patterns(argument, patterns, [name for name, _ in named])
    if scope == "attention":
        _warn_of_unknown(model, (*include, *exclude))
    recognised = {id(param) for param in find(model)}
    groups: list[dict[str, Any]] = [
        {"name": name, "params": [], "param_names": [], **(options or {})}
        for name, options in ((scope, main), ("rest", rest))
    ]
    for name, param in named:
        chosen = (id(param) in recognised or _matches(name, include)) and not _matches(name, exclude)
        group = groups[0 if chosen else 1]
        group["params"].append(param)
        group["param_names"].append(name)
    if not groups[0]["params"]:
        how = "are left after exclude" if recognised else "were found"
        raise ValueError(
            f"no {what} {how} in {type(model).__name__}; name them with include= of param_groups, for example "
            f"param_groups(model, scope={scope!r}, include=['*.my_query.weight'])."
        )
    return ParamGroups(group for group in groups if group["params"])


def is_rest_by_name(name: str) -> bool:
    """Whether a parameter's full name says that it belongs to an embedding or an output head."""
    parts = name.lower().split(".")
    words = {word for part in parts for word in (part, *part.split("_"))}
    return any(word in words for word in (*EMBEDDINGS, *HEADS))


def _matrices(model: nn.Module) -> Iterator[Tensor]:
    embeddings = {
        id(param) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) for param in m.parameters()
    }
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        # A tensor right in the model, beside its layers, is an embedding of positions or classes, not a layer's.
        layered = isinstance(module, nn.MultiheadAttention | ParametrizationList)
        if not layered and any(True for _ in module.children()):
            continue
        for key, param in own.items():
            if param.ndim < 2 or id(param) in embeddings or is_rest_by_name(f"{name}.{key}" if name else key):
                continue
            if not _is_gain(module, key, own):
                yield param


def _is_gain(module: nn.Module, key: str, own: Mapping[str, Tensor]) -> bool:
    """Whether a tensor holds the lengths of a weight-normalised matrix, whose directions lie in another one."""
    if isinstance(module, ParametrizationList):
        return key == "original0" and "original1" in own and own[key].numel() < own["original1"].numel()
    return key.endswith("_g") and f"{key[:-2]}_v" in own


def _projections(model: nn.Module) -> Iterator[Tensor]:
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            yield from (w for w in (getattr(module, key, None) for key in PACKED_PARAMETERS) if w is not None)
        layers = {
            child: layer
            for child, layer in module.named_children()
            if not isinstance(layer, nn.Embedding) and any(param.ndim == 2 for param in layer.parameters())
        }
        parts = {PROJECTIONS[child] for child in layers if child in PROJECTIONS}
        # "value" alone may be any head, "in_proj" any layer's: they need company, or a parent named for it.
        packed = any(child in PACKED for child in layers)  # GPT-2 has its queries apart where they look at other tokens
        named = "attention" in f"{type(module).__name__} {name}".lower().replace("attn", "attention")
        attends = len(parts) > 1 or packed or named
        for child, layer in layers.items():
            if child in PACKED or (attends and child in (*PROJECTIONS, "in_proj")):
                yield from (param for param in layer.parameters() if param.ndim == 2)


def _warn_of_unknown(model: nn.Module, known: Sequence[str]) -> None:
    """A matrix beside known projections may be one that the table of names misses: better seen than left out."""
    for name, module in model.named_modules():
        for child in partly_known(module):
            full = f"{name}.{child}.weight" if name else f"{child}.weight"
            if not _matches(full, known):
                warnings.warn(
                    f"{full} stands beside queries and keys but has no known name, and goes to the rest; give it to "
                    "include= if it is an attention weight, or to exclude= to say that it is not.",
                    stacklevel=3,
                )


def _check_patterns(argument: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    if isinstance(patterns, str):
        raise TypeError(f"{argument} must be a list of patterns, got the string {patterns!r}; write [{patterns!r}].")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"the {argument} pattern {pattern!r} matches no parameter; names look like {names[:1]} "
                "(see model.named_parameters())."
            )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
