"""A small Llama: a causal language model with RMSNorm, rotary positions and SwiGLU.

Layers and weights are called as in Hugging Face's ``LlamaForCausalLM``, so that
``LlamaForCausalLM(LlamaConfig(**model.config.llama())).load_state_dict(model.state_dict())`` is the same model.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets.layers import Dropout
from mirrormax.nets.sizes import DecoderConfig


class CausalAttention(nn.Module):
    """softmax(R(i)q_i · R(t)k_t/√d_h) v_t over t ≤ i for each head; R(t) turns pair j by t θ^{−2j/d_h}."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.dim // config.heads
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, T, dim), cos and sin (T, d_h) to (B, T, dim)."""
        q, k, v = self._parts(x, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).flatten(2)))

    def weights(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The attention maps (B, heads, T, T); row i says how token i attends to those up to it."""
        q, k, _ = self._parts(x, cos, sin)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return cast(Tensor, (q @ k.transpose(-1, -2) / self.head_dim**0.5).masked_fill(later, -torch.inf).softmax(-1))

    def _parts(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        return _rotated(q, cos, sin), _rotated(k, cos, sin), v


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Coordinates j and j + d_h/2 of x (…, T, d_h) turned by the angle of their pair."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) ∘ W_up x)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


class DecoderBlock(nn.Module):
    """Attention and SwiGLU, each normalising its input and adding to it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config)
        self.mlp = SwiGLU(config)
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.eps)
        self.dropout: nn.Dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + cast(Tensor, self.dropout(self.mlp(self.post_attention_layernorm(x))))


class _Body(nn.Module):
    """What Hugging Face calls ``model``: all but the head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(config.dim, eps=config.eps)


class Decoder(nn.Module):
    """Token ids to the logits of the token that follows each."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02 if isinstance(module, nn.Embedding) else config.dim**-0.5 / 2)
        for block in cast("list[DecoderBlock]", self.model.layers):  # so that the sum over blocks does not grow
            for layer in (block.self_attn.o_proj, block.mlp.down_proj):
                nn.init.normal_(layer.weight, std=config.dim**-0.5 / 2 / (2 * config.blocks) ** 0.5)

    def forward(self, ids: Tensor, attention: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """ids (B, T) to logits (B, T, vocab_size); with ``attention`` also the maps (blocks, B, heads, T, T)."""
        length = ids.shape[1]
        if length > self.config.context:
            raise ValueError(f"ids have {length} tokens, more than context={self.config.context}; cut them.")
        x = self.model.embed_tokens(ids)
        (cos, sin), maps = self.rotations(length, x), []
        for block in cast("list[DecoderBlock]", self.model.layers):
            if attention:
                maps.append(block.self_attn.weights(block.input_layernorm(x), cos, sin))
            x = block(x, cos, sin)
        logits = self.lm_head(self.model.norm(x))
        return (logits, torch.stack(maps)) if attention else logits

    def rotations(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (length, d_h) of the angles t θ^{−2j/d_h}, each for the two coordinates of pair j."""
        head_dim = self.config.dim // self.config.heads
        steps = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.arange(length, device=like.device).float(), self.config.theta**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """ids (T,) followed by ``count`` tokens, each drawn from the model's distribution given those before it."""
        for _ in range(count):
            logits = cast(Tensor, self(ids[None, -self.config.context :]))[0, -1]
            ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        return ids
