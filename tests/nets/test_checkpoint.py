"""Checkpoint folders: whole ones come back as they were, all others are refused with one sentence."""

import json
import math
import pickle
import tracemalloc

import pytest
import torch
from readers import piece_tokenizer
from safetensors.torch import load_file, save_file

from mirrormax.nets import (
    TransformerClassifier,
    TransformerConfig,
    VisionConfig,
    VisionTransformer,
    checkpoint,
    load_model,
    save_model,
)

CLASSES = ("bad", "good")


def tokenizer():
    return piece_tokenizer(["a good film", "a bad film"])


def text_model(**changes):
    vocabulary = tokenizer().get_vocab_size()
    sizes = {"vocab_size": vocabulary, "max_length": 8, "dim": 4, "hidden": 6, "blocks": 2, "heads": 2}
    return TransformerClassifier(TransformerConfig(**{**sizes, **changes}))


@pytest.fixture
def saved(tmp_path):
    return save_model(tmp_path / "model", text_model(), CLASSES, tokenizer(), {"p": 1.1})


def rewrite(folder, change):
    path = folder / "config.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def without_checksum(folder):
    """As folders were before weights had one."""
    rewrite(folder, lambda told: told.pop("sha256"))


def refused(folder):
    """The refusal's sentence."""
    with pytest.raises((ValueError, OSError)) as caught:
        load_model(folder)
    text = str(caught.value)
    assert str(folder) in text
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_text_model_comes_back_as_it_was(tmp_path):
    model = text_model().train()
    found = load_model(save_model(tmp_path, model, CLASSES, tokenizer(), {"p": 1.1}))
    assert found.kind == "sentiment"
    assert found.classes == CLASSES
    assert found.training == {"p": 1.1}
    assert found.model.config == model.config
    assert not found.model.training
    assert found.tokenizer.to_str() == tokenizer().to_str()
    ids = torch.tensor([found.tokenizer.encode("a good film").ids])
    assert torch.equal(found.model(ids), model.eval()(ids))
    assert all(parameter.requires_grad for parameter in found.model.parameters())


def test_a_vision_model_comes_back_as_it_was(tmp_path):
    config = VisionConfig(
        image_size=4, patch=2, channels=1, classes=3, dim=4, hidden=6, blocks=1, heads=2, head_dim=3, dropout=0
    )
    model = VisionTransformer(config).double()
    found = load_model(save_model(tmp_path, model, "abc"))
    assert found.model.config == config
    assert found.tokenizer is None
    pixels = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    assert torch.equal(found.model(pixels), model.eval()(pixels))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_nothing_of_an_earlier_model_is_left(saved):
    save_model(saved, text_model(), CLASSES)
    assert load_model(saved).tokenizer is None


def test_saving_refuses_what_is_no_model_of_ours(tmp_path):
    with pytest.raises(TypeError, match=r"model must be one of .*, got Linear"):
        save_model(tmp_path / "a", torch.nn.Linear(2, 2), CLASSES)
    with pytest.raises(ValueError, match="classes must be 2 names, one for each class, got 3"):
        save_model(tmp_path / "b", text_model(), "abc")
    assert not list(tmp_path.iterdir())


def test_every_truncation_of_every_file_is_refused(saved):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        whole = (saved / name).read_bytes()
        for length in (0, 1, 8, len(whole) // 2, len(whole) - 3):
            (saved / name).write_bytes(whole[:length])
            assert name in refused(saved)
        (saved / name).write_bytes(whole)
    load_model(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_refused(saved, name):
    (saved / name).unlink()
    assert name in refused(saved)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[]", b"null", b"7", b"[" * 100_000, b'{"format": 1}', b"9" * 5000], ids=len
)
def test_json_that_is_no_description_is_refused(saved, content):
    (saved / "config.json").write_bytes(content)
    refused(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "format 3"),
        ({"kind": "os.system"}, "kind 'os.system'"),
        ({"kind": "vision"}, "describes no vision model"),
        ({"classes": ["one"]}, "classes must be 2 names"),
        ({"classes": ["one", {}]}, "classes that are not strings"),
        ({"training": []}, "lacks one of"),
    ],
    ids=str,
)
def test_a_description_of_another_model_is_refused(saved, change, message):
    rewrite(saved, lambda told: told.update(change))
    assert message in refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"__class__": "x"},
        {"dim": "4"},
        {"dim": None},
        {"dim": -4},
        {"dim": 6},
        {"dim": 1e400},
        {"dropout": float("nan")},
        {"vocab_size": 5},
        {"classes": 2.0},
        {"blocks": 3},
        {"hidden": 7},
    ],
    ids=str,
)
def test_sizes_that_are_not_those_of_the_weights_are_refused(saved, change):
    rewrite(saved, lambda told: told["model"].update(change))
    refused(saved)


def test_giant_sizes_take_no_memory(saved):
    for giant in ({"vocab_size": 2**31 - 1, "dim": 2**20}, {"vocab_size": 2**31 - 1, "dim": 2**31 - 2}):
        rewrite(saved, lambda told, giant=giant: told["model"].update(giant))
        tracemalloc.start()
        refused(saved)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 50e6


def test_one_flipped_bit_of_the_weights_is_refused(saved):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for place in (len(whole) - 1, len(whole) // 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "is not as it was written" in refused(saved)
    path.write_bytes(whole)
    load_model(saved)


@pytest.mark.parametrize("value", [7, "", "0" * 64])
def test_a_checksum_of_something_else_is_refused(saved, value):
    rewrite(saved, lambda told: told.update(sha256=value))
    assert "is not as it was written" in refused(saved)


def test_a_folder_from_before_checksums_is_read(saved):
    without_checksum(saved)
    assert load_model(saved).classes == CLASSES


def test_weights_that_are_not_of_one_floating_point_type_are_refused(saved):
    without_checksum(saved)
    path = saved / "model.safetensors"
    weights = load_file(path)
    save_file({name: value.long() for name, value in weights.items()}, path)
    refused(saved)
    save_file({name: value.half() if "head" in name else value for name, value in weights.items()}, path)
    assert "holds torch.float16, torch.float32" in refused(saved)


def test_weights_kept_in_half_precision_are_computed_with_in_single(saved):
    without_checksum(saved)
    path = saved / "model.safetensors"
    weights = load_file(path)
    save_file({name: value.half() for name, value in weights.items()}, path)
    read = load_model(saved).model.state_dict()
    for name, value in weights.items():
        assert read[name].dtype == torch.float32
        torch.testing.assert_close(read[name], value, rtol=1e-3, atol=1e-4)


def test_a_tokenizer_that_the_model_has_no_vectors_for_is_refused(saved):
    (saved / "tokenizer.json").write_text(piece_tokenizer(["words that nobody has heard of before"]).to_str())
    assert "tokens beyond the model's" in refused(saved)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_no_file_is_unpickled(saved, tmp_path, name):
    for content in (pickle.dumps(Bomb(tmp_path / "boom")), b""):
        (saved / name).write_bytes(content)
        refused(saved)
    torch.save(Bomb(tmp_path / "boom"), saved / name)
    refused(saved)
    assert not (tmp_path / "boom").exists()


FOREIGN = {
    "a Hugging Face config": {"config.json": '{"model_type": "bert"}', "model.safetensors": "weights"},
    "weights alone": {"model.safetensors": "weights"},
    "a tokenizer alone": {"tokenizer.json": "{}"},
    "another JSON": {"config.json": "[]"},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_of_somebody_else_is_never_overwritten(tmp_path, name):
    for file, content in FOREIGN[name].items():
        (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=r"is not of a model that mirrormax has saved; give an empty"):
        save_model(tmp_path, text_model(), CLASSES)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FOREIGN[name]


def test_a_link_is_never_written_through(tmp_path, saved):
    target = tmp_path / "precious.json"
    target.write_text("mine")
    (saved / "tokenizer.json").unlink()
    (saved / "tokenizer.json").symlink_to(target)
    with pytest.raises(ValueError, match="is a link, and links are not written through"):
        save_model(saved, text_model(), CLASSES, tokenizer())
    assert target.read_text() == "mine"


@pytest.mark.parametrize("last", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_save_that_was_cut_off_is_no_model_and_is_replaced_by_the_next(tmp_path, monkeypatch, last):
    original = checkpoint.replacing

    def cut(path, *failures):
        if path.name == last and (last != "config.json" or (path.parent / "model.safetensors").exists()):
            raise OSError("the power is gone")
        return original(path, *failures)

    for folder in (tmp_path / "new", save_model(tmp_path / "old", text_model(), CLASSES, tokenizer())):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "replacing", cut)
            with pytest.raises(OSError, match="the power is gone"):
                save_model(folder, text_model(), CLASSES, tokenizer())
        refused(folder)
        load_model(save_model(folder, text_model(), CLASSES, tokenizer()))


def test_how_pixels_are_scaled_is_part_of_a_model_of_images_and_old_ones_have_the_usual(tmp_path):
    sizes = {"image_size": 4, "patch": 2, "channels": 1, "classes": 3, "dim": 4, "hidden": 6, "blocks": 1, "heads": 2}
    folder = save_model(tmp_path, VisionTransformer(VisionConfig(**sizes, head_dim=2, mean=0.3, std=0.2)), "abc")
    found = load_model(folder).model.config
    assert (found.mean, found.std) == (0.3, 0.2)
    rewrite(folder, lambda told: [told["model"].pop(name) for name in ("mean", "std")])
    found = load_model(folder).model.config
    assert (found.mean, found.std) == (0.5, 0.25)


def test_pixels_may_be_scaled_by_channel(tmp_path):
    sizes = {"image_size": 4, "patch": 2, "classes": 3, "dim": 4, "hidden": 6, "blocks": 1, "heads": 2, "head_dim": 2}
    config = VisionConfig(**sizes, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    assert load_model(save_model(tmp_path, VisionTransformer(config), "abc")).model.config == config
    for name, value in (("std", 0), ("std", (1.0, 0.0, 1.0)), ("mean", (0.5, 0.5)), ("mean", (0.5, 0.5, math.nan))):
        with pytest.raises(ValueError, match=name):
            VisionConfig(**{name: value})


def test_a_text_model_of_the_first_format_is_read_as_it_was_trained(tmp_path):
    model = text_model(activation="relu", norm_bias=True).eval()
    folder = save_model(tmp_path, model, CLASSES)
    rewrite(folder, lambda told: told.update(format=1))
    rewrite(folder, lambda told: [told["model"].pop(name) for name in ("activation", "norm_bias")])
    read = load_model(folder).model
    assert read.config == model.config
    ids = torch.tensor([[2, 3, 4]])
    assert torch.equal(read(ids), model(ids))
