"""A model is judged by rows that it was not trained on, and what is not known of them is said."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from readers import piece_tokenizer, reader

from mirrormax import audit
from mirrormax._identity import content_digests
from mirrormax.auditing import load_for_audit, make_batches, quality_of, read_data
from mirrormax.nets import VisionConfig, VisionTransformer, save_model
from mirrormax.training import ImageBatches, LanguageTraining, SentimentTraining, VisionTraining, splits_of, train

WORDS = ("good", "bad", "fine", "dull", "warm", "cold", "film", "plot", "cast", "song")
SIZES = {"vocab_size": 120, "dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "max_length": 16, "epochs": 2, "test": 0.3}


def sentences(seed, count=40):
    random = np.random.default_rng(seed)
    return [f"row {seed} {number} " + " ".join(random.choice(WORDS, 4)) for number in range(count)]


def write_table(path, rows):
    lines = [f"{text},{'yes' if 'good' in text else 'no'}" for text in rows]
    path.write_text("\n".join(["text,label", *lines]) + "\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs on one table, split differently, and a run on digits."""
    home = tmp_path_factory.mktemp("runs")
    write_table(home / "texts.csv", sentences(0))
    for name, seed in (("first", 3), ("second", 4)):
        train(SentimentTraining(data=str(home / "texts.csv"), split_seed=seed, **SIZES), home / name)
    sizes = {"dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "head_dim": 4, "epochs": 1, "train_limit": 100}
    train(VisionTraining(data="digits", **sizes), home / "digits")
    return home


def accuracy(loaded, data):
    return quality_of(loaded, make_batches(loaded, data, 16, 8, with_labels=True))().mean()


def test_a_run_is_judged_by_the_test_split_that_its_summary_counts(home):
    loaded = load_for_audit(home / "first")
    data = read_data(str(home / "texts.csv"), label_column="label", models=[loaded])
    summary = json.loads((home / "first" / "summary.json").read_text())
    assert data.rows == splits_of(loaded.training).test.texts
    assert accuracy(loaded, data) == pytest.approx(summary["test_accuracy"])
    assert data.note == f"All 12 held-out test texts of {home / 'texts.csv'} (the other 28 were used in training)."


def test_a_limit_is_drawn_from_the_held_out_rows(home):
    loaded = load_for_audit(home / "first")
    held = set(read_data(str(home / "texts.csv"), models=[loaded]).rows)
    few = read_data(str(home / "texts.csv"), models=[loaded], limit=5, seed=2)
    assert len(few) == 5
    assert set(few.rows) <= held
    assert few.note.startswith("5 of the 12 held-out test texts of ")
    assert few.note.endswith("(the other 28 were used in training), a uniform sample with seed 2.")


def test_two_models_are_judged_by_rows_that_neither_was_trained_on(home):
    first, second = load_for_audit(home / "first"), load_for_audit(home / "second")
    path = str(home / "texts.csv")
    held = [set(read_data(path, models=[model]).rows) for model in (first, second)]
    assert held[0] != held[1]
    assert set(read_data(path, models=[first, second]).rows) == held[0] & held[1]


@pytest.mark.parametrize("kind", [".txt", ".csv"])
def test_a_language_model_is_judged_by_text_that_it_held_out(tmp_path, kind):
    path = tmp_path / f"corpus{kind}"
    rows = sentences(5)
    path.write_text("\n".join(rows) + "\n") if kind == ".txt" else write_table(path, rows)
    sizes = {"dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "context": 16, "epochs": 1, "test": 0.3}
    train(LanguageTraining(data=str(path), **sizes), tmp_path / "lm")
    loaded = load_for_audit(tmp_path / "lm")
    data = read_data(str(path), models=[loaded])
    seen, _, held, _ = splits_of(loaded.training)
    assert 8 <= len(data) <= 12
    assert all(text in "\n".join(held.texts) and text not in "\n".join(seen.texts) for text in data.rows)
    found = audit(loaded.model, make_batches(loaded, data, 16, 4), samples=4, rivals=3, controls=1)
    assert len(found.heads) == 2


def test_images_of_a_source_with_a_test_half_are_those(home):
    loaded = load_for_audit(home / "digits")
    data = read_data("digits", models=[loaded])
    assert data.note == "All 359 test images of digits."
    summary = json.loads((home / "digits" / "summary.json").read_text())
    assert accuracy(loaded, data) == pytest.approx(summary["test_accuracy"])


def test_pixels_enter_an_audit_as_they_entered_the_training(tmp_path):
    sizes = {"image_size": 8, "patch": 4, "channels": 1, "classes": 10, "dim": 4, "hidden": 6, "blocks": 1, "heads": 2}
    config = VisionConfig(**sizes, head_dim=2, mean=0.3, std=0.2)
    loaded = load_for_audit(save_model(tmp_path, VisionTransformer(config), tuple("abcdefghij")))
    data = read_data("digits", limit=5)
    (batch,) = make_batches(loaded, data, 16, 8)
    ours, _ = ImageBatches(data.rows, np.zeros(5, dtype=np.int64), config).__getitems__([0, 1, 2, 3, 4])
    np.testing.assert_allclose(batch["pixels"], (data.rows / 255 - 0.3) / 0.2, rtol=1e-5, atol=1e-6)
    assert (batch["pixels"] == ours).all()


def test_other_data_are_read_whole_and_it_is_said_that_they_are_other(home, tmp_path):
    write_table(tmp_path / "others.csv", sentences(1))
    loaded = load_for_audit(home / "first")
    data = read_data(str(tmp_path / "others.csv"), models=[loaded])
    assert len(data) == 40
    assert "was trained on other data" in data.caveats[0]


def checkpoint(folder, training):
    tokenizer = piece_tokenizer(sentences(0))
    save_model(folder, reader(tokenizer), ("no", "yes"), tokenizer, training)
    return load_for_audit(folder)


def test_a_table_that_has_changed_since_training_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "texts.csv", sentences(0))
    choices = asdict(SentimentTraining(data="texts.csv", **SIZES))
    digests = content_digests([tmp_path / "texts.csv"])
    loaded = checkpoint("model", {**choices, "data_sha256": {**digests, "vocab.txt": "of a vocabulary"}})
    assert len(read_data("texts.csv", models=[loaded])) == 12
    (tmp_path / "moved.csv").write_bytes((tmp_path / "texts.csv").read_bytes())
    assert len(read_data("moved.csv", models=[loaded])) == 12  # known by what it holds
    write_table(tmp_path / "texts.csv", [*sentences(0), "one good row more"])
    with pytest.raises(ValueError, match=r"texts.csv is not what it was when model was trained on it"):
        read_data("texts.csv", models=[loaded])


def test_many_files_are_known_by_folder(tmp_path):
    folder = tmp_path / "train" / "pos"
    folder.mkdir(parents=True)
    files = [folder / f"{number}.txt" for number in range(101)]
    for path in files:
        path.write_text(path.name)
    before = content_digests(files)
    assert list(before) == ["train/pos"]
    files[50].write_text("changed")
    assert content_digests(files) != before


def test_a_checkpoint_that_does_not_say_its_data_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "texts.csv", sentences(0))
    silent = checkpoint("silent", {})
    data = read_data("texts.csv", models=[silent])
    assert len(data) == 40
    assert data.caveats == ("Whether silent was trained on some of these texts is not known.",)
    older = checkpoint("older", asdict(SentimentTraining(data="texts.csv", **SIZES)))
    data = read_data("texts.csv", models=[older])
    assert len(data) == 12
    assert "does not say what its data held" in data.caveats[0]
