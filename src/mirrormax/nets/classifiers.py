"""The paper's two classifiers: a post-norm transformer of texts, and a pre-norm one of images with patches as tokens.

Both are read out at their first token. The paper's text says little of the first; what is built here is what its
authors' code runs (``real-data/tools/sent_analysis_model.py`` and ``vit_model.py`` of
github.com/addskj2002/AttentionMD).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets.layers import Dropout, SelfAttention
from mirrormax.nets.sizes import TransformerConfig, VisionConfig


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
