"""``mirrormax train lm``: windows, loss and bits per byte, resumed runs, a sample, and what is refused."""

import json
import math
import shlex

import numpy as np
import pytest
import torch

from mirrormax import commands
from mirrormax.data import token_stream
from mirrormax.nets import load_model
from mirrormax.training import (
    Classification,
    LanguageTraining,
    majority_sentence,
    prepare,
    read_metrics,
    splits_of,
    train,
)
from mirrormax.training.batches import TokenBatches


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("".join(f"{k} times {j} is {k * j}.\n" for k in range(1, 20) for j in range(1, 12)))
    return path


@pytest.fixture
def language_run(book):
    def make(**choices):
        sizes = {"context": 16, "dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "epochs": 2, "batch_size": 8}
        return LanguageTraining(**{"data": str(book), "optimizer": "adamw", "lr": 0.01, **sizes, **choices})

    return make


def test_windows_cover_the_stream_once():
    windows = TokenBatches(np.arange(14), context=4, bytes=28)
    assert len(windows) == 3
    inputs, labels = windows.__getitems__([0, 2])
    assert inputs.tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert labels.tolist() == [[1, 2, 3, 4], [9, 10, 11, 12]]
    assert windows.labels.tolist() == list(range(1, 13))
    assert windows.tokens_per_byte == 0.5


def test_the_size_of_a_vocabulary_that_is_not_learnt_is_refused(language_run):
    with pytest.raises(ValueError, match=r"vocab_size=300 is ignored with tokens='byte'; .* choose tokens='bpe'"):
        language_run(vocab_size=300)
    assert language_run(vocab_size=300, tokens="bpe").vocab_size == 300


def test_a_model_of_frequencies_is_not_said_to_have_learnt_nothing():
    told = {"test_accuracy": 0.02, "majority_share": {"test": 0.02}}
    assert "most frequent class" in majority_sentence(told)
    assert "it has learnt nothing" in majority_sentence(told)
    sentence = majority_sentence({**told, "test_bits_per_byte": 3.7})
    assert "most frequent token" in sentence
    assert "learnt nothing" not in sentence


def test_loss_and_bits_per_byte_are_those_of_the_saved_model(tmp_path, language_run):
    folder = train(language_run(tokens="bpe", vocab_size=300), tmp_path / "run")
    told, saved = json.loads((folder / "summary.json").read_text()), load_model(folder / "model")
    texts = splits_of(saved.training).test.texts
    stream = torch.from_numpy(token_stream(saved.tokenizer, texts))
    count = (len(stream) - 1) // 16
    with torch.no_grad():
        windows = [stream[k * 16 : k * 16 + 17] for k in range(count)]
        losses = [
            torch.nn.functional.cross_entropy(saved.model(window[None, :-1])[0], window[1:], reduction="sum")
            for window in windows
        ]
    loss = float(sum(losses)) / (16 * count)
    assert told["test_loss"] == pytest.approx(loss, rel=1e-5)
    text_bytes = len("".join(texts).encode())
    assert told["test_bits_per_byte"] == pytest.approx(loss * len(stream) / text_bytes / math.log(2), rel=1e-5)
    rows = read_metrics(folder)
    assert told["validation_loss"] == min(row["validation_loss"] for row in rows)
    assert rows[0]["validation_loss"] > rows[1]["validation_loss"]
    assert rows[-1]["train_bits_per_byte"] > 0


def test_an_interrupted_run_goes_on_to_be_the_uninterrupted_one(tmp_path, monkeypatch, language_run):
    config = language_run(dropout=0.2, schedule="cosine")
    whole = train(config, tmp_path / "whole")
    original = Classification.training_step

    def step(self, batch, index):
        if self.current_epoch == 1 and index == 1:
            raise KeyboardInterrupt
        return original(self, batch, index)

    monkeypatch.setattr(Classification, "training_step", step)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut")
    monkeypatch.setattr(Classification, "training_step", original)
    train(config, tmp_path / "cut")
    for name in ("metrics.csv", "summary.json", "sample.txt", "model/model.safetensors", "model/tokenizer.json"):
        assert (whole / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_the_sample_is_text_that_the_model_made(tmp_path, language_run):
    folder = train(language_run(tokens="char", epochs=3, lr=0.03), tmp_path / "run")
    sample = (folder / "sample.txt").read_text()
    assert set(sample) & set("0123456789timesis.")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "md"])
def test_every_optimizer_trains_it(language_run, tmp_path, optimizer):
    rows = read_metrics(train(language_run(optimizer=optimizer, lr=None), tmp_path / "run"))
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


def test_the_command_says_what_came_out(tmp_path, monkeypatch, capsys, book):
    monkeypatch.chdir(tmp_path)
    sizes = shlex.split("--context 16 --dim 8 --hidden 8 --blocks 1 --heads 2 --epochs 1 --out run --accelerator cpu")
    assert commands.main(["train", "lm", "--data", str(book), "--optimizer", "adamw", *sizes]) == 0
    out, err = capsys.readouterr()
    assert "bits per byte" in out
    assert "A sample:" in out
    assert "257 tokens, windows of 16" in err
    assert "bits/byte" in err


def test_prepared_batches_are_windows_of_each_split(language_run):
    prepared = prepare(language_run())
    assert prepared.classes == ()
    assert prepared.model.config.vocab_size == prepared.tokenizer.get_vocab_size() == 257
    assert [type(part) for part in prepared.splits] == [TokenBatches] * 3
