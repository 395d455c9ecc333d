"""What makes a run the same run: its choices, the content of its data, and the revision of training's numbers."""

import json
import shutil

import numpy as np
import pytest
import torch

from mirrormax.data import Images, Texts, load_images, load_text
from mirrormax.nets import load_model
from mirrormax.training import Classification, is_complete, read_splits, run_key, splits_of, train


class PowerCut(Exception):
    """What ends a process in a test."""


@pytest.fixture
def own_texts(texts, tmp_path):
    return shutil.copy(texts, tmp_path / "mine.csv")


def change(path):
    """As many bytes, one of them another."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def half_done(config, folder, monkeypatch):
    original = Classification.training_step

    def step(self, batch, index):
        if self.current_epoch == 1:
            raise PowerCut
        return original(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "training_step", step)
        with pytest.raises(PowerCut):
            train(config, folder)


def contents(folder):
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_run_over_missing_or_changed_data_is_refused_by_name_and_left_alone(
    own_texts, text_run, tmp_path, monkeypatch, is_whole
):
    config, folder = text_run(data=str(own_texts), epochs=2), tmp_path / "run"
    train(config, folder) if is_whole else half_done(config, folder, monkeypatch)
    before, key = contents(folder), run_key(config)
    moved = own_texts.rename(tmp_path / "moved.csv")
    with pytest.raises(FileNotFoundError, match=r"mine\.csv does not exist; check the path"):
        train(config, folder)
    assert contents(folder) == before
    moved.rename(own_texts)
    change(own_texts)
    assert not is_complete(folder, config)
    assert run_key(config) != key
    with pytest.raises(ValueError, match=r"mine\.csv"):
        train(config, folder)
    assert contents(folder) == before
    train(config, folder, force=True)
    assert is_complete(folder, config)


def test_a_run_of_another_revision_is_refused_and_left_alone(finished, monkeypatch):
    config, folder = finished
    before = contents(folder)
    monkeypatch.setattr("mirrormax.training.inputs.REVISION", 10**6)
    assert not is_complete(folder, config)
    with pytest.raises(ValueError, match="revision"):
        train(config, folder)
    assert contents(folder) == before


def made_by_another_version(folder):
    manifest = json.loads((folder / "mirrormax.json").read_text())
    manifest["made_by"] = ["0.1.9, code 0f0f0f"]
    (folder / "mirrormax.json").write_text(json.dumps(manifest))


def test_a_run_that_an_earlier_version_began_is_gone_on_with_to_the_same_end(image_run, tmp_path, monkeypatch):
    config, whole, folder = image_run(), tmp_path / "whole", tmp_path / "run"
    train(config, whole)
    half_done(config, folder, monkeypatch)
    made_by_another_version(folder)
    train(config, folder)
    made_by = json.loads((folder / "mirrormax.json").read_text())["made_by"]
    assert made_by[0] == "0.1.9, code 0f0f0f"
    assert len(made_by) == 2
    for name in ("model/model.safetensors", "metrics.csv", "summary.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    made_by_another_version(whole)
    before = contents(whole)
    assert is_complete(whole, config)
    train(config, whole)
    assert contents(whole) == before


def test_data_that_change_while_they_are_read_are_refused(own_texts, text_run, tmp_path, monkeypatch):
    from mirrormax.training import inputs, run

    def prepare(*arguments):
        found = inputs.prepare(*arguments)
        change(own_texts)
        return found

    monkeypatch.setattr(run, "prepare", prepare)
    with pytest.raises(ValueError, match="changed while they were read; start again"):
        train(text_run(data=str(own_texts)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_data_dir_is_another_run(tmp_path, image_run):
    for number in (1, 2):
        folder = tmp_path / str(number) / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (100, 3073), dtype=np.uint8)
        pixels[:, 0] = np.arange(100) % 10
        (folder / "data_batch_1.bin").write_bytes(pixels.tobytes())
        (folder / "batches.meta.txt").write_text("\n".join(f"thing {k}" for k in range(10)))
    config = image_run(data="cifar10", image_size=8, epochs=1)
    train(config, tmp_path / "run", tmp_path / "1")
    with pytest.raises(ValueError, match=r"data_batch_1\.bin"):
        train(config, tmp_path / "run", tmp_path / "2")
    shutil.copytree(tmp_path / "1", tmp_path / "moved")
    assert is_complete(tmp_path / "run", config, tmp_path / "moved")  # the same bytes elsewhere


def test_a_checkpoint_gives_back_the_rows_it_was_tested_on(own_texts, text_run, tmp_path):
    config = text_run(data=str(own_texts), epochs=1, train_limit=50, split_seed=3)
    checkpoint = load_model(train(config, tmp_path / "run") / "model")
    found, expected = splits_of(checkpoint.training), read_splits(config)
    assert found.classes == ("bad", "good")
    assert isinstance(found.test, Texts)
    assert found.test.texts == expected.test.texts
    assert len(found.train) == checkpoint.training["rows"]["train"] == 50
    everything = set(load_text(own_texts).train.texts)
    assert not set(found.train.texts) & (set(found.test.texts) | set(found.validation.texts)) or len(everything) < 120
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    ids = [torch.tensor([checkpoint.tokenizer.encode(text).ids[:12]]) for text in found.test.texts]
    answers = np.array([int(checkpoint.model(row).argmax()) for row in ids])
    assert (answers == found.test.labels).mean() == pytest.approx(summary["test_accuracy"], abs=0.1)
    change(own_texts)
    with pytest.raises(ValueError, match=r"mine\.csv is not what the checkpoint was trained on"):
        splits_of(checkpoint.training)


def test_the_packaged_images_of_a_checkpoint_come_back_too(image_run, tmp_path):
    checkpoint = load_model(train(image_run(epochs=1), tmp_path / "run") / "model")
    found = splits_of(checkpoint.training)
    assert isinstance(found.test, Images)
    assert np.array_equal(found.test.pixels, load_images("digits").test.pixels)


def test_a_checkpoint_of_the_first_version_loads_but_does_not_know_its_rows(image_run, tmp_path):
    folder = train(image_run(epochs=1), tmp_path / "run") / "model"
    config = json.loads((folder / "config.json").read_text())
    config["training"] = {**config["training"], "format": 3, "warmup": 1.0}
    for name in ("data_sha256", "rows"):
        del config["training"][name]
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = load_model(folder)
    with pytest.raises(ValueError, match=r"does not say what was in its data 'digits'"):
        splits_of(checkpoint.training)


def test_a_run_of_the_first_version_is_refused_and_left_alone(image_run, tmp_path):
    (tmp_path / "config.json").write_text('{"task": "vision", "format": 3, "version": "0.1.0"}')
    (tmp_path / "complete.json").write_text('{"epochs": 2}')
    before = contents(tmp_path)
    for force in (False, True):
        with pytest.raises(ValueError, match="not of a training run"):
            train(image_run(), tmp_path, force=force)
    assert contents(tmp_path) == before
