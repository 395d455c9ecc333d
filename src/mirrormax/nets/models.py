"""The paper's two classifiers, and a small Llama.

The classifiers are a post-norm transformer of texts and a pre-norm one of images with patches as tokens, both read out
at their first token. The paper's text says little of the first; what is built here is what its authors' code runs
(``real-data/tools/sent_analysis_model.py`` and ``vit_model.py`` of github.com/addskj2002/AttentionMD).

The language model is causal, with RMSNorm, rotary positions and SwiGLU. Layers and weights are called as in Hugging
Face's ``LlamaForCausalLM``, so that
``LlamaForCausalLM(LlamaConfig(**model.config.llama())).load_state_dict(model.state_dict())`` is the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets.layers import Dropout, SelfAttention
from mirrormax.nets.sizes import DecoderConfig, TransformerConfig, VisionConfig


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each added to its input and then normalised.

    In training, ``dropout`` acts on the attention weights and on what the two add to their inputs.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, dropout=config.dropout)
        self.attention_norm = nn.LayerNorm(config.dim, bias=config.norm_bias)
        self.expand = nn.Linear(config.dim, config.hidden, bias=False)
        self.contract = nn.Linear(config.hidden, config.dim, bias=False)
        self.hidden_norm = nn.LayerNorm(config.dim, bias=config.norm_bias)
        self.activation: Callable[[Tensor], Tensor] = getattr(functional, config.activation)
        self.dropout: nn.Dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, *, first_only: bool = False) -> Tensor:
        """x (B, T, dim) to the tokens of the next layer, all of them or the first alone."""
        change = self.attention(x, mask, first_only=first_only)
        x = self.attention_norm((x[:, :1] if first_only else x) + self.dropout(change))
        change = self.contract(self.activation(self.expand(x)))
        return cast(Tensor, self.hidden_norm(x + self.dropout(change)))


class TransformerClassifier(nn.Module):
    """Token ids to class logits, through learned positions, post-norm blocks, and a linear map of the first token.

    No layer has a bias, and nothing is dropped from the embeddings. With two classes there is one output s, and the
    logits are (0, s), so that their cross-entropy is the paper's binary cross-entropy. The head reads the first token
    alone, so the last block works out that row alone.

    Args:
        config: its sizes.
        sparse_embedding: let the token embedding make sparse gradients, for optimizers that take them.
    """

    def __init__(self, config: TransformerConfig, sparse_embedding: bool = False) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim, sparse=sparse_embedding)
        self.positions = nn.Embedding(config.max_length, config.dim)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.blocks))
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=config.embedding_std)
        self.head = nn.Linear(config.dim, 1 if config.classes == 2 else config.classes, bias=False)

    def forward(self, ids: Tensor, attention: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """ids (B, T) to logits (B, classes); with ``attention`` also the maps (blocks, B, heads, T, T).

        Ids equal to ``config.pad_id`` are padding: they never change what a text gets.
        """
        mask = self.mask(ids)
        x, maps = self.embed(ids), []
        for depth, block in enumerate(cast("list[TransformerBlock]", self.blocks), start=1):
            if attention:
                maps.append(block.attention.weights(x, mask))
            x = block(x, mask, first_only=depth == len(self.blocks))
        logits = self.head(x[:, 0])
        if self.config.classes == 2:
            logits = functional.pad(logits, (1, 0))
        return (logits, torch.stack(maps)) if attention else logits

    def embed(self, ids: Tensor) -> Tensor:
        """What enters the first block, (B, T, dim)."""
        length = ids.shape[1]
        if length > self.config.max_length:
            raise ValueError(f"ids have {length} tokens, more than max_length={self.config.max_length}; truncate them.")
        return cast(Tensor, self.tokens(ids) + self.positions.weight[:length])

    def mask(self, ids: Tensor) -> Tensor:
        """True where there is a token, (B, T)."""
        return ids != self.config.pad_id


class VisionBlock(nn.Module):
    """Attention and a two-layer perceptron, each normalising its input and adding to it."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention = SelfAttention(config.dim, config.heads, config.head_dim, output_bias=True)
        self.hidden_norm = nn.LayerNorm(config.dim)
        self.expand = nn.Linear(config.dim, config.hidden)
        self.contract = nn.Linear(config.hidden, config.dim)
        self.dropout: nn.Dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, *, first_only: bool = False) -> Tensor:
        """x (B, T, dim) to the tokens of the next layer, all of them or the first alone."""
        change = self.attention(self.attention_norm(x), first_only=first_only)
        x = (x[:, :1] if first_only else x) + self.dropout(change)
        hidden = self.dropout(functional.gelu(self.expand(self.hidden_norm(x))))
        return x + cast(Tensor, self.dropout(self.contract(hidden)))


class VisionTransformer(nn.Module):
    """Images to class logits. The head reads the class token alone, so the last block works out that row alone."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = nn.Linear(config.channels * config.patch**2, config.dim)
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(config.tokens, config.dim)))
        self.class_token = nn.Parameter(nn.init.normal_(torch.empty(config.dim)))
        self.dropout: nn.Dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.classes)

    def forward(self, pixels: Tensor, attention: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """pixels (B, channels, size, size) to logits (B, classes); maps (blocks, B, heads, T, T) on request."""
        x, maps = self.embed(pixels), []
        for depth, block in enumerate(cast("list[VisionBlock]", self.blocks), start=1):
            if attention:
                maps.append(block.attention.weights(block.attention_norm(x)))
            x = block(x, first_only=depth == len(self.blocks))
        logits = self.head(self.norm(x[:, 0]))
        return (logits, torch.stack(maps)) if attention else logits

    def embed(self, pixels: Tensor) -> Tensor:
        """What enters the first block, (B, T, dim): the class token, then the patches row by row."""
        expected = (self.config.channels, self.config.image_size, self.config.image_size)
        if tuple(pixels.shape[1:]) != expected:
            raise ValueError(f"pixels must have shape (B, {', '.join(map(str, expected))}), got {tuple(pixels.shape)}.")
        patches = functional.unfold(pixels, self.config.patch, stride=self.config.patch).transpose(1, 2)
        tokens = self.patches(patches)
        first = self.class_token.expand(len(pixels), 1, -1)
        return cast(Tensor, self.dropout(torch.cat([first, tokens], dim=1) + self.positions))


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
