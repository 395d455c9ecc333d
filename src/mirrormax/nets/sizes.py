"""The sizes of the networks as plain data, checked before anything is built; nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from mirrormax._checks import flag, integer, number, one_of

ACTIVATIONS = ("gelu", "relu")
LARGEST = 2**31 - 1
MOST_LAYERS = 1024  # of blocks and heads: beyond it, building the model would be the denial of service
FEWEST = {"classes": 2, "pad_id": 0}


def check_sizes(config: Any) -> None:
    """Refuse a field that should be a whole number and is none, is too small (mostly below 1) or absurdly large."""
    for each in fields(config):
        if each.type == "int":
            most = MOST_LAYERS if each.name in ("blocks", "heads") else LARGEST
            integer(each.name, getattr(config, each.name), at_least=FEWEST.get(each.name, 1), at_most=most)
    number("dropout", config.dropout, at_least=0, below=1)


@dataclass(frozen=True)
class TransformerConfig:
    """A text classifier. The paper's have blocks = heads = 3, 4 or 6, and the rest as here.

    ``activation`` and ``norm_bias`` are for models of mirrormax 0.1, which had ``relu`` and biased LayerNorms.
    """

    vocab_size: int
    classes: int = 2
    max_length: int = 512
    dim: int = 384
    hidden: int = 1536
    blocks: int = 3
    heads: int = 3
    dropout: float = 0.2
    pad_id: int = 0
    embedding_std: float = 1.0
    activation: str = "gelu"
    norm_bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self)
        number("embedding_std", self.embedding_std, above=0)
        number("pad_id", self.pad_id, at_least=0, below=self.vocab_size)
        one_of("activation", self.activation, ACTIVATIONS)
        flag("norm_bias", self.norm_bias)
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got dim={self.dim} and heads={self.heads}.")


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of an image classifier; the defaults are the paper's for CIFAR images scaled to 48 pixels.

    Pixels between 0 and 1 enter as (pixel − ``mean``)/``std``, of one mean and std or one per channel; checkpoints from
    before these were stored have the defaults.
    """

    image_size: int = 48
    patch: int = 4
    channels: int = 3
    classes: int = 10
    dim: int = 512
    hidden: int = 512
    blocks: int = 6
    heads: int = 8
    head_dim: int = 64
    dropout: float = 0.1
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.25

    def __post_init__(self) -> None:
        check_sizes(self)
        for name, above in (("mean", -math.inf), ("std", 0.0)):
            object.__setattr__(self, name, _per_channel(name, getattr(self, name), self.channels, above))
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size must be a multiple of patch, got image_size={self.image_size} and patch={self.patch}."
            )

    @property
    def tokens(self) -> int:
        """Patches of an image, and the class token."""
        return (self.image_size // self.patch) ** 2 + 1


def _per_channel(name: str, value: Any, channels: int, above: float) -> float | tuple[float, ...]:
    """One number, or one for each channel; a JSON file has these as a list."""
    if not isinstance(value, list | tuple):
        return number(name, value, above=above)
    if len(value) != channels:
        raise ValueError(f"{name} must be one number or {channels}, one for each channel, got {len(value)}.")
    return tuple(number(name, each, above=above) for each in value)


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a language model. ``context`` is the most tokens it sees at once, ``theta`` the rotations' base."""

    vocab_size: int
    context: int = 128
    dim: int = 128
    hidden: int = 384
    blocks: int = 2
    heads: int = 4
    dropout: float = 0.0
    theta: float = 10000.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_sizes(self)
        number("theta", self.theta, above=0)
        number("eps", self.eps, above=0)
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"dim must be a multiple of twice the heads, as pairs of coordinates are rotated, got dim={self.dim} "
                f"and heads={self.heads}."
            )

    def llama(self) -> dict[str, Any]:
        """The same sizes as arguments of Hugging Face's ``LlamaConfig``."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.dim,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "eos_token_id": 0,
        }
