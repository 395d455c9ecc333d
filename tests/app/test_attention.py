"""What the Attention page is told: probabilities of the model itself, pivots, and leads in logits."""

import numpy as np
import pytest
import torch

from mirrormax.app.attention import SHIPPED, Checkpoints, attention
from mirrormax.app.folders import run_label
from mirrormax.data import encode


@pytest.fixture
def checkpoints(models, tmp_path):
    return Checkpoints(models, shipped=tmp_path)


@pytest.fixture
def checkpoint(checkpoints):
    return checkpoints.load("first")


def test_prediction_and_attention_are_the_models(checkpoint):
    text = "a warm , funny film"
    found = attention(checkpoint, text, 0, words_only=False)
    ids = torch.from_numpy(encode(checkpoint.tokenizer, [text], 16)[0])[None]
    logits, maps = checkpoint.model(ids, attention=True)
    told = [row["probability"] for row in found["prediction"]]
    assert told == pytest.approx(torch.softmax(logits[0], -1).tolist(), abs=1e-6)
    assert found["layers"][1][0]["attention"] == pytest.approx(maps[1, 0, 0, 0].tolist(), rel=1e-3)
    assert found["layers"][0][-1]["attention"] == pytest.approx(maps[0, 0, :, 0].mean(0).tolist(), rel=1e-3)


def test_pivot_and_support_are_the_two_best_by_logits(checkpoint):
    head = attention(checkpoint, "a warm , funny film", 2, words_only=False)["layers"][0][1]
    logs = np.log(head["attention"])
    order = np.argsort(-logs)
    assert head["pivot"] == order[0]
    assert order[1] in head["support"]
    assert head["lead"] == pytest.approx(logs[order[0]] - logs[order[1]], rel=1e-2)


def test_without_the_marks_the_words_share_all_attention(checkpoint):
    found = attention(checkpoint, "a warm film", 0, words_only=True)
    head = found["layers"][0][0]
    assert head["attention"][0] == head["attention"][-1] == 0
    assert sum(head["attention"]) == pytest.approx(1, abs=1e-3)
    assert head["pivot"] not in (0, 4)


def test_tokens_stand_as_they_were_typed(checkpoint):
    found = attention(checkpoint, "Unhappy <script> zebra", 0, words_only=True)["tokens"]
    assert [token["text"] for token in found] == ["[CLS]", "Un", "happy", "<", "script", ">", "zebra", "[SEP]"]
    assert [token["joined"] for token in found] == [False, False, True, False, True, True, False, False]
    assert [token["unknown"] for token in found].index(True) == 6


def test_what_does_not_fit_is_told(checkpoint):
    assert not attention(checkpoint, "film " * 14, 0, words_only=True)["cut"]
    found = attention(checkpoint, "film " * 15, 0, words_only=True)
    assert found["cut"]
    assert len(found["tokens"]) == 16


@pytest.mark.parametrize(
    ("text", "query", "sentence"),
    [
        ("  ", 0, "text is empty"),
        ("film " * 5000, 0, "text has 25,000 characters"),
        ("film", 3, "query must be the place of one of the 3 tokens, got 3"),
    ],
)
def test_bad_input_is_refused(checkpoint, text, query, sentence):
    with pytest.raises(ValueError, match=sentence):
        attention(checkpoint, text, query, words_only=True)


def test_checkpoints_go_by_their_folder_and_say_how_they_were_trained(checkpoints):
    names = {entry.name: entry.label for entry in checkpoints.entries()}
    assert set(names) == {"first", "run"}
    assert names["run"] == "ℓ2.1"
    with pytest.raises(ValueError, match=r"there is no checkpoint '\.\./first'"):
        checkpoints.load("../first")


def test_what_is_no_text_model_is_left_out(models, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "config.json").write_text('{"kind": "vision"}')
    (tmp_path / "images" / "model.safetensors").write_text("")
    (tmp_path / "link").symlink_to(models / "first")
    assert Checkpoints(tmp_path, shipped=tmp_path / "none").entries() == []


def test_a_checkpoint_that_was_written_again_is_read_again(checkpoints, models):
    before = checkpoints.load("first")
    assert checkpoints.load("first") is before
    path = models / "first" / "model.safetensors"
    path.write_bytes(path.read_bytes())
    assert checkpoints.load("first") is not before


def test_two_trained_checkpoints_come_with_the_package():
    shipped = Checkpoints(None)
    names = [entry.name for entry in shipped.entries()]
    assert names == ["l1.1", "l2"]
    size = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert size < 600_000
    for name in names:
        checkpoint = shipped.load(name)
        review = "a warm , funny and moving film with a wonderful cast"
        ids = torch.tensor([checkpoint.tokenizer.encode(review).ids])
        assert checkpoint.model(ids).argmax().item() == 1


def test_the_shipped_models_are_named_by_their_training_and_differ_in_what_is_shown():
    shipped = Checkpoints(None)
    assert [entry.label for entry in shipped.entries()] == ["ℓ1.1, lr 0.18, seed 0", "ℓ2, lr 0.3, seed 0"]
    near_one, plain = (
        attention(shipped.load(name), "it is boring and far too long", 0, words_only=True) for name in ("l1.1", "l2")
    )
    for role in ("query", "key", "value"):
        assert near_one["sparsity"][role]["hoyer"] > plain["sparsity"][role]["hoyer"]
    assert near_one["sparsity"]["value"]["top_mass"] > 3 * plain["sparsity"]["value"]["top_mass"]
    assert near_one["layers"][0][0]["tokens"] < plain["layers"][0][0]["tokens"]


@pytest.mark.parametrize(
    ("training", "label"),
    [
        ({"optimizer": "md", "p": 1.1, "lr": 0.18, "seed": 0}, "ℓ1.1, lr 0.18, seed 0"),
        ({"optimizer": "adamw", "p": 1.1, "lr": 0.001, "seed": 3}, "AdamW, lr 0.001, seed 3"),
        ({"optimizer": "md", "p": 1.5, "potential": "SquaredLp", "lr": None}, "ℓ1.5 squared"),
        ({"optimizer": "md", "p": 1.1, "attention_only": True, "seed": 1}, "ℓ1.1 on attention, seed 1"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_run_is_named_by_what_it_is(training, label):
    assert run_label(training) == label
