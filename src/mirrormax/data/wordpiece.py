"""Learning a WordPiece vocabulary, so that the same texts always give the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

PREFIX = "##"
MOST_A_CHARACTER = 8  # tokens that a text can give rise to: letters, their inner forms and merges, after decomposition


def learn_tokens(texts: Sequence[str], vocab_size: int, special: Sequence[str]) -> list[str]:
    """At most ``vocab_size`` tokens, the special ones first, then letters, then merges in the order of their learning.

    The library's trainer numbers the letters inside words ("##a") as it meets them in a hash table, and breaks ties
    between merges by these numbers: two runs would differ. So the letters are given to it, already in order.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    letters = _frequent_letters(texts, normalizer, (vocab_size - len(special)) // 4)
    inner = [PREFIX + letter for letter in letters if len(splitter.pre_tokenize_str("a" + letter)) == 1]
    trainer = trainers.WordPieceTrainer(
        # The library reserves memory for as many as it is asked for, and ends the process where there is too little.
        vocab_size=min(vocab_size, len(special) + MOST_A_CHARACTER * sum(map(len, texts))),
        min_frequency=2,
        special_tokens=[*special, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=lambda token: vocabulary[token])


def _frequent_letters(texts: Sequence[str], normalizer: normalizers.Normalizer, most: int) -> list[str]:
    """The most frequent normalised characters, ties by code point, sorted: rare signs must not crowd the words out."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():  # normalisation goes character by character, so each is needed but once
        for letter in normalizer.normalize_str(character):
            counts[letter] += count
    ranked = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    return sorted(ranked[:most])
