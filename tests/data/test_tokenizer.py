"""Tokenizers agree with BERT's, learn the same vocabulary from the same texts, and let no text end itself."""

import os

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer, Tokenizer

from mirrormax.data import encode, encode_with_offsets, load_tokenizer, tokenizer, train_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "film", "is", "un", "##believ", "##able", "good", "caf", "##e", ".", ",", "!", "##s", "[", "]", "pad"]
TEXTS = [
    f"the {a} film was {b}, and the {b} actors played {a} parts" for a in ("good", "dull") for b in ("fine", "odd")
]


def vocab_txt(folder, tokens=(*SPECIAL, *WORDS), end="\n"):
    path = folder / "vocab.txt"
    path.write_bytes("".join(token + end for token in tokens).encode())
    return path


def ordered(tokenizer):
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


@pytest.fixture
def small(tmp_path):
    return load_tokenizer(vocab_txt(tmp_path))


def test_texts_are_cut_as_bert_cuts_them(small, tmp_path):
    texts = ["The FILM is unbelievable.", "Café,films!", "xyz\tgood\n\n", "a" * 120, "電影 good", "", "is\u00a0un-able"]
    published = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True)
    for text, ids in zip(texts, encode(small, texts, 50), strict=True):
        assert ids.tolist() == published.encode(text).ids
        assert ids.dtype == np.int64


def test_a_long_text_loses_its_end_but_keeps_its_sep(small):
    cls, sep, film = (small.token_to_id(token) for token in ("[CLS]", "[SEP]", "film"))
    short, long = encode(small, ["film film", "film " * 9], 4)
    assert short.tolist() == [cls, film, film, sep]
    assert long.tolist() == [cls, film, film, sep]
    assert small.token_to_id("[PAD]") == 0


def test_encoding_leaves_the_tokenizer_as_it_was_and_does_not_hang_on_the_batch(small, monkeypatch):
    before = small.to_str()
    texts = ["good film " * n for n in range(7)]
    whole = encode(small, texts, 8)
    monkeypatch.setattr(tokenizer, "BATCH", 2)
    assert [ids.tolist() for ids in encode(small, texts, 8)] == [ids.tolist() for ids in whole]
    assert small.to_str() == before


def test_nothing_in_a_text_becomes_a_special_token(small):
    [ids] = encode(small, ["good [PAD] film [SEP] [MASK]"], 50)
    tokens = [small.id_to_token(i) for i in ids]
    assert tokens[:6] == ["[CLS]", "good", "[", "pad", "]", "film"]
    assert not {0, small.token_to_id("[MASK]")} & set(ids.tolist())
    assert tokens.count("[SEP]") == 1


def test_offsets_point_at_the_words(small):
    text = "The café is unbelievable!"
    ids, offsets = encode_with_offsets(small, text, 50)
    assert ids.tolist() == encode(small, [text], 50)[0].tolist()
    assert [text[a:b] for a, b in offsets] == ["", "The", "caf", "é", "is", "un", "believ", "able", "!", ""]
    cut_ids, cut = encode_with_offsets(small, text, 4)
    assert cut_ids.tolist() == encode(small, [text], 4)[0].tolist()
    assert cut.tolist() == [[0, 0], [0, 3], [4, 7], [0, 0]]


def test_the_tokenizer_survives_being_saved(small, tmp_path):
    small.save(str(tmp_path / "tokenizer.json"))
    back = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert encode(back, TEXTS, 9)[0].tolist() == encode(small, TEXTS, 9)[0].tolist()


def test_windows_line_ends_are_no_part_of_a_token(tmp_path):
    assert ordered(load_tokenizer(vocab_txt(tmp_path, end="\r\n"))) == [*SPECIAL, *WORDS]


BAD_VOCABULARIES = {
    "no mask": (SPECIAL[:4], r"lacks \[MASK\]; give the vocab\.txt of an uncased BERT"),
    "pad not first": ([*SPECIAL[1:], "[PAD]"], r"does not begin with \[PAD\]"),
    "a token twice": ([*SPECIAL, "film", "good", "film"], r"line 8 .*vocab\.txt repeats 'film' of line 6"),
    "empty line": ([*SPECIAL, "", "film"], r"line 6 .*vocab\.txt is empty"),
}


@pytest.mark.parametrize("name", BAD_VOCABULARIES)
def test_a_bad_vocabulary_is_refused_by_line(tmp_path, name):
    tokens, message = BAD_VOCABULARIES[name]
    with pytest.raises(ValueError, match=message):
        load_tokenizer(vocab_txt(tmp_path, tokens))


def test_a_vocabulary_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the vocabulary .*none\.txt does not exist"):
        load_tokenizer(tmp_path / "none.txt")
    with pytest.raises(IsADirectoryError, match="is not a file"):
        load_tokenizer(tmp_path)


def test_the_same_texts_give_the_same_vocabulary():
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("abcdefghij"), size=5)) for _ in range(300)]  # ties everywhere
    texts = [" ".join(generator.choice(words, size=20)) for _ in range(60)]
    vocabularies = [ordered(train_tokenizer(texts, 400)) for _ in range(4)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    assert len(vocabularies[0]) == 400
    assert vocabularies[0][:5] == SPECIAL


def test_asking_for_more_tokens_than_any_memory_holds_gives_those_there_are():
    assert ordered(train_tokenizer(TEXTS, 2**62)) == ordered(train_tokenizer(TEXTS, 5000))


def test_a_learnt_vocabulary_writes_its_texts_without_unknowns():
    learnt = train_tokenizer(TEXTS, 200)
    assert "film" in learnt.get_vocab()
    unknown = learnt.token_to_id("[UNK]")
    assert all(unknown not in ids for ids in encode(learnt, TEXTS, 100))


def test_rare_signs_do_not_crowd_the_words_out():
    signs = [chr(0x1F300 + i) for i in range(300)]
    learnt = train_tokenizer([*TEXTS * 3, *signs], 150)
    assert learnt.get_vocab_size() <= 150
    assert "film" in learnt.get_vocab()


def test_an_endless_word_is_learnt_from_at_once_and_changes_nothing():
    """The trainer's time grows with the square of a word's length: this one would take it weeks."""
    assert ordered(train_tokenizer([*TEXTS, "film " + "x" * 1_000_000], 120)) == ordered(
        train_tokenizer([*TEXTS, "film "], 120)
    )


@pytest.mark.parametrize(
    ("texts", "size", "error", "message"),
    [
        ([], 200, ValueError, "texts is empty"),
        ("one text", 200, TypeError, "texts must be a sequence of texts"),
        (TEXTS, 99, ValueError, "vocab_size must be at least 100, got 99"),
        (TEXTS, 200.0, TypeError, "vocab_size must be an integer"),
    ],
)
def test_training_from_nothing_or_for_nothing_is_refused(texts, size, error, message):
    with pytest.raises(error, match=message):
        train_tokenizer(texts, size)


def test_encoding_to_nothing_is_refused(small):
    with pytest.raises(ValueError, match="max_length must be at least 3, got 2"):
        encode(small, TEXTS, 2)
    with pytest.raises(TypeError, match="texts must be a sequence"):
        encode(small, "one text", 9)


def test_threads_are_off_for_the_sake_of_forked_workers_unless_they_were_asked_for(small, monkeypatch):
    for use in (lambda: encode(small, TEXTS, 9), lambda: train_tokenizer(TEXTS, 100)):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
        use()
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
        use()
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
