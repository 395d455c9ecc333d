"""A tokenizer and a text model small enough to see through, of the layout of the real ones."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from mirrormax.nets import TransformerClassifier, TransformerConfig


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


def reader(tokenizer, seed=0, **sizes):
    """A small text model with first weights from a seed."""
    torch.manual_seed(seed)
    small = {"dim": 12, "hidden": 12, "blocks": 2, "heads": 3, "max_length": 64, **sizes}
    return TransformerClassifier(TransformerConfig(vocab_size=tokenizer.get_vocab_size(), **small))


def attentive_reader(tokenizer, pieces):
    """A text model whose one head sees nothing but whether a token is one of ``pieces``, and looks there."""
    model = reader(tokenizer, blocks=1, heads=1)
    attention = model.blocks[0].attention
    with torch.no_grad():
        model.positions.weight.zero_()
        model.tokens.weight.zero_()
        model.tokens.weight[list(pieces), 0] = 1.0
        model.tokens.weight[tokenizer.token_to_id("[CLS]"), 1] = 1.0
        attention.query.weight.zero_()
        attention.key.weight.zero_()
        attention.query.weight[0, 1], attention.key.weight[0, 0] = 100.0, 1.0
    return model
