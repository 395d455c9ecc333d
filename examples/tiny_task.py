"""The task that all examples learn: does the marked token of a sequence say yes or no?

Sequences of 12 token ids. Ids 4 and up are noise; one token, anywhere, is 2 ("no") or 3 ("yes"). A model must learn
where to look, which is what attention is for. No download, and a laptop learns it in seconds.
"""

import torch
from torch import nn

VOCABULARY, LENGTH, CLASSES = 40, 12, 2


def make_data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (count, 12) and labels (count,)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (count, LENGTH), generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    places = torch.randint(LENGTH, (count, 1), generator=generator)
    return ids.scatter(1, places, 2 + labels[:, None]), labels


class TinyTransformer(nn.Module):
    """An embedding, one block of attention, and a head on the mean over tokens."""

    def __init__(self, dim: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.block = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(ids)).mean(dim=1))


def accuracy(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(ids).argmax(dim=-1) == labels).float().mean().item()
