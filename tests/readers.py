"""A tokenizer and a text model small enough to see through, of the layout of the real ones."""

from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn


def piece_tokenizer(texts, letters=4):
    """[CLS] … [SEP] over pieces of a few letters, so that long words have several."""
    split = pre_tokenizers.BertPreTokenizer()
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text.lower())})
    pieces = {
        ("##" if start else "") + word[start : start + letters]
        for word in words
        for start in range(0, len(word), letters)
    }
    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(pieces)])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = split
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


class KnownAttention(nn.Module):
    """[CLS] attends to each token in proportion to a weight of its id, differently in each head and block."""

    def __init__(self, vocab_size, blocks=2, heads=3, classes=2, max_length=64, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.config = SimpleNamespace(pad_id=0, max_length=max_length, classes=classes)
        self.weights = nn.Parameter(torch.rand(blocks, heads, vocab_size, generator=generator) + 0.1)
        self.scores = nn.Parameter(torch.randn(vocab_size, generator=generator))
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids, attention=False):
        present = ids != self.config.pad_id
        raw = self.weights[:, :, ids].transpose(1, 2) * present[None, :, None]
        rows = raw / raw.sum(-1, keepdim=True)
        maps = rows[..., None, :].expand(*rows.shape, rows.shape[-1])
        score = self.dropout(self.scores[ids] * present).sum(1)
        logits = torch.stack([torch.zeros_like(score), score], dim=1)
        return (logits, maps) if attention else logits
