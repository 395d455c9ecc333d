"""How libraries call the layers of attention: the one table that ``param_groups`` and the audit's adapters read.

A new name is a line here; what the audit then computes with it is checked against the layer's own output.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

SEPARATE = ("{}", "{}_proj", "{}_lin", "to_{}", "w{}", "W{}", "W_{}")
"""Patterns of a layer that makes queries, keys or values alone …"""
PARTS: Mapping[str, str] = {
    "q": "q", "k": "k", "v": "v", "kv": "kv", "Q": "q", "K": "k", "V": "v", "query": "q", "key": "k", "value": "v"
}  # fmt: skip
"""… what stands in the patterns, and what it makes."""
PROJECTIONS: Mapping[str, str] = {pattern.format(name): part for pattern in SEPARATE for name, part in PARTS.items()}
PACKED = frozenset(("qkv", "to_qkv", "qkv_proj", "query_key_value", "c_attn", "Wqkv"))
"""Layers that make all three at once."""
PACKED_PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Parameters of ``nn.MultiheadAttention`` itself."""
OUTPUTS = ("o_proj", "out_proj", "out_lin")
"""Layers behind the heads, within the same module."""


def separate_projections(module: nn.Module) -> tuple[str, str, str] | None:
    """The names of a module's children that make queries, keys and values; None where it has no such three."""
    children = {name for name, _ in module.named_children()}
    for pattern in SEPARATE:
        for letters in (("q", "k", "v"), ("Q", "K", "V"), ("query", "key", "value")):
            query, key, value = (pattern.format(letter) for letter in letters)
            if {query, key, value} <= children:
                return query, key, value
    return None


def output_projection(module: nn.Module) -> nn.Module | None:
    """The child behind the heads, where it is one of the module's own."""
    return next((child for name, child in module.named_children() if name in OUTPUTS), None)
