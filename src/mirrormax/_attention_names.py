"""How libraries call the layers of attention: the one table that ``param_groups`` and the audit's adapters read.

A new name is a line here; what the audit then computes with it is checked against the layer's own output.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

SEPARATE = ("{}", "{}_proj", "{}_lin", "to_{}", "w{}", "W{}", "W_{}", "{}_attn", "{}_global")
"""Patterns of a layer that makes queries, keys or values alone …"""
PARTS: Mapping[str, str] = {
    "q": "q", "k": "k", "v": "v", "kv": "kv", "Q": "q", "K": "k", "V": "v", "query": "q", "key": "k", "value": "v"
}  # fmt: skip
"""… what stands in the patterns, and what it makes."""
OF_DISTANCES: Mapping[str, str] = {"pos_query_proj": "q", "pos_key_proj": "k"}
"""DeBERTa's queries and keys of distances."""
PROJECTIONS: Mapping[str, str] = {
    **{pattern.format(name): part for pattern in SEPARATE for name, part in PARTS.items()},
    **OF_DISTANCES,
    "query_key": "qk",  # Reformer's one projection for queries and keys
    # DeepSeek's projections to a latent space and back
    "q_a_proj": "q", "q_b_proj": "q", "kv_a_proj_with_mqa": "kv", "kv_a_proj": "kv", "kv_b_proj": "kv",
}  # fmt: skip
PACKED = frozenset(("qkv", "to_qkv", "qkv_proj", "query_key_value", "c_attn", "Wqkv"))
"""Layers that make all three at once."""
PACKED_PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Parameters of ``nn.MultiheadAttention`` itself."""
OUTPUTS = ("o_proj", "out_proj", "out_lin")
"""Linear layers behind the heads, within the same module, a head's columns one after the other …"""
BEHIND = (*OUTPUTS, "output", "c_proj", "dense", "proj", "o", "wo", "Wo", "to_out", "out", "fc_out", "lin_out")
"""… and everything else that libraries put there."""


def separate_projections(module: nn.Module) -> tuple[str, str, str] | None:
    """The names of a module's children that make queries, keys and values; None where it has no such three."""
    children = {name for name, _ in module.named_children()}
    for pattern in SEPARATE:
        for letters in (("q", "k", "v"), ("Q", "K", "V"), ("query", "key", "value")):
            query, key, value = (pattern.format(letter) for letter in letters)
            if {query, key, value} <= children:
                return query, key, value
    return None


def query_projection(module: nn.Module) -> str | None:
    """The child that makes a module's queries, alone or with keys and values; None where it makes none."""
    children = [name for name, _ in module.named_children()]
    made = {name: PROJECTIONS[name] for name in children if name in PROJECTIONS}
    if {"k", "kv", "qk"} & set(made.values()) or PACKED & set(children):
        # DeepSeek makes queries in two steps; the second is the linear one.
        beside = ("_global", *OF_DISTANCES)
        queries = [name for name, part in made.items() if part in ("q", "qk") and not name.endswith(beside)]
        return queries[-1] if queries else next((name for name in children if name in PACKED), None)
    return None


def output_projection(module: nn.Module) -> nn.Module | None:
    """The child behind the heads, where it is one of the module's own."""
    return next((child for name, child in module.named_children() if name in OUTPUTS), None)


def partly_known(module: nn.Module) -> list[str]:
    """Children of an attention module that the table does not know beside ones that it does: matrices, by name.

    Norms, embeddings and what stands behind the heads are no part of this; a table that misses a projection leaves it
    out of the attention weights, and that should be seen.
    """
    layers = {name: child for name, child in module.named_children() if not isinstance(child, nn.Embedding)}
    children = [name for name, layer in layers.items() if getattr(getattr(layer, "weight", None), "ndim", 0) == 2]
    known = {name for name in children if name in PROJECTIONS or name in PACKED}
    attends = any(PROJECTIONS.get(name) in ("q", "k", "kv", "qk") or name in PACKED for name in known)
    return [name for name in children if attends and name not in (*known, *BEHIND)]
