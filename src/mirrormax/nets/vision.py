"""The paper's vision transformer: patches as tokens, pre-norm blocks, read out at a class token.

Built as its authors' code builds it (``real-data/tools/vit_model.py`` of github.com/addskj2002/AttentionMD).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets.layers import Dropout, SelfAttention
from mirrormax.nets.sizes import VisionConfig


def pixel_inputs(pixels: Tensor, mean: float | Sequence[float], std: float | Sequence[float]) -> Tensor:
    """Bytes (n, C, H, W) as a model reads them: (pixel/255 − mean)/std, of one mean and std or one per channel."""
    centre, spread = (torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1) for value in (mean, std))
    return (pixels.float() / 255 - centre) / spread


def resized(images: Tensor, size: int) -> Tensor:
    """Images (n, C, H, W) at ``size`` by ``size`` pixels, as they are if that is what they have."""
    if images.shape[-2:] == (size, size):
        return images
    return functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True)


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

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, heads, T, T)."""
        return self.attention.weights(self.attention_norm(x))

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
                maps.append(block.weights(x))
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
