"""Text for language models: read, split, and turned into tokens that lose nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormax.data import END, TOKENS, corpus_files, language_tokenizer, load_corpus, text_of, token_stream

TEXTS = ["the cat sat on the mat", "the cat, the hat: naïve ☃", "on the other hat"]
TOKENIZERS = {kind: language_tokenizer(kind, TEXTS, vocab_size=270) for kind in TOKENS}


@pytest.mark.parametrize("kind", TOKENS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40) | st.just(f"a {END} b <0x41>"))
@settings(max_examples=40, deadline=None)
def test_every_text_comes_back_from_its_tokens(kind, text):
    stream = token_stream(TOKENIZERS[kind], [text])
    assert stream[-1] == 0
    assert 0 not in stream[:-1].tolist()
    assert text_of(TOKENIZERS[kind], stream.tolist()) == text


def test_tokens_are_bytes_characters_or_learnt_pieces():
    byte, char, bpe = (TOKENIZERS[kind] for kind in TOKENS)
    assert byte.get_vocab_size() == 257
    assert token_stream(byte, ["é"]).tolist() == [1 + 0xC3, 1 + 0xA9, 0]
    assert char.get_vocab_size() == 257 + len(set("".join(TEXTS)))
    assert len(token_stream(char, ["the ☃"])) == 6
    assert 257 < bpe.get_vocab_size() <= 270
    assert len(token_stream(bpe, ["the cat the cat"])) < 10


def test_the_quick_way_for_bytes_is_the_library_s():
    byte = TOKENIZERS["byte"]
    assert token_stream(byte, TEXTS[:2]).tolist() == [
        token for text in TEXTS[:2] for token in [*byte.encode(text, add_special_tokens=False).ids, 0]
    ]


def test_wrong_bytes_spoil_only_themselves():
    tokens = [1 + byte for byte in b"ok \xff fine"]
    assert text_of(TOKENIZERS["byte"], tokens) == "ok � fine"


def test_a_text_file_is_cut_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{k:03d} " for k in range(100)))
    train, validation, test = load_corpus(tmp_path / "a.txt", validation=0.25, test=0.2)
    assert "".join(part.texts[0] for part in (train, validation, test)) == (tmp_path / "a.txt").read_text()
    assert [len(part.texts[0]) for part in (train, validation, test)] == [240, 80, 80]


def test_a_folder_gives_each_file_to_all_splits(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"{name} words " * 20)
    assert [path.name for path in corpus_files(tmp_path)] == ["a.txt", "b.txt"]
    assert [len(part) for part in load_corpus(tmp_path)] == [2, 2, 2]


def test_rows_of_a_table_are_held_out_by_the_seed(tmp_path):
    (tmp_path / "t.csv").write_text("body\n" + "".join(f"text {k}\n" for k in range(50)))
    first, again, other = (load_corpus(tmp_path / "t.csv", text_column="body", seed=seed) for seed in (0, 0, 1))
    assert [part.texts for part in first] == [part.texts for part in again]
    assert first[2].texts != other[2].texts
    assert sorted(text for part in first for text in part.texts) == sorted(f"text {k}" for k in range(50))
    assert [len(part) for part in first] == [36, 4, 10]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("none.txt", FileNotFoundError, "does not exist"),
        ("book.pdf", ValueError, "data must be 'reviews', 'imdb', a .txt"),
        ("empty", FileNotFoundError, r"holds no \*\.txt"),
        ("short.txt", ValueError, "too short to be cut into three splits"),
        ("two.csv", ValueError, "has 2 texts, too few for three splits"),
        ("latin.txt", ValueError, "is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch, source, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("ab")
    (tmp_path / "two.csv").write_text("text\na\nb\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 20)
    with pytest.raises(error, match=message):
        load_corpus(source)


def test_an_unknown_kind_of_tokens_is_refused():
    with pytest.raises(ValueError, match="tokens must be one of byte, char, bpe, got 'word'"):
        language_tokenizer("word", TEXTS)


def test_the_same_texts_give_the_same_pieces():
    again = language_tokenizer("bpe", TEXTS, vocab_size=270)
    assert again.get_vocab() == TOKENIZERS["bpe"].get_vocab()
    assert np.array_equal(token_stream(again, TEXTS), token_stream(TOKENIZERS["bpe"], TEXTS))
