"""Whole tiny runs: repeated, interrupted, resumed, refused."""

import json
import pickle
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mirrormax.nets import load_model
from mirrormax.training import Classification, Machine, batches, is_complete, machine, prepare, read_metrics, run, train


class PowerCut(Exception):
    """What ends a process in a test."""


def cut_power():
    raise PowerCut


def files(folder):
    """What must be the same whenever the same run is done."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timing.csv"
    }


def interrupt(monkeypatch, happening, epoch=1, batch=2):
    """Let something happen in the midst of an epoch, once."""
    original, still = Classification.training_step, [True]

    def step(self, data, index):
        if still and (self.current_epoch, index) == (epoch, batch):
            still.clear()
            happening()
        return original(self, data, index)

    monkeypatch.setattr(Classification, "training_step", step)


RUNS = {  # one for each kind of state: dual variables, momentum and a schedule, moments
    "md p=1.1": {"p": 1.1},
    "md with momentum, cosine": {"p": 1.5, "momentum": 0.9, "schedule": "cosine", "warmup": 0.5},
    "adabreg": {"optimizer": "adabreg", "lam": 0.02},
}


@pytest.mark.parametrize("choices", RUNS.values(), ids=RUNS)
def test_an_interrupted_run_goes_on_to_be_the_uninterrupted_one(tmp_path, monkeypatch, text_run, choices):
    config = text_run(dropout=0.3, **choices)
    whole = files(train(config, tmp_path / "whole"))
    interrupt(monkeypatch, cut_power)
    with pytest.raises(PowerCut):
        train(config, tmp_path / "cut")
    assert not is_complete(tmp_path / "cut", config)
    torch.manual_seed(77)  # nothing may hang on where the generator was left
    assert files(train(config, tmp_path / "cut")) == whole
    assert {"metrics.csv", "summary.json", "config.json", "mirrormax.json", "model/model.safetensors"} <= whole.keys()
    assert len(read_metrics(tmp_path / "cut")) == 3


def test_batches_in_pieces_on_several_threads_go_on_exactly_too(tmp_path, monkeypatch, text_run, three_threads):
    monkeypatch.setattr(batches, "WHOLE", 30)
    monkeypatch.setattr(batches, "TOKENS", 20)
    config = text_run(dropout=0.3, p=1.1)
    whole = files(train(config, tmp_path / "whole"))
    interrupt(monkeypatch, cut_power)
    with pytest.raises(PowerCut):
        train(config, tmp_path / "cut")
    torch.set_num_threads(2)
    assert files(train(config, tmp_path / "cut")) == whole


def test_without_validation_all_rows_are_trained_on_and_the_last_epoch_is_taken(tmp_path, text_run):
    config = text_run(epochs=2, validation=0, by_length=False)
    folder = train(config, tmp_path / "run")
    rows, summary = read_metrics(folder), json.loads((folder / "summary.json").read_text())
    assert summary["examples"] == {"train": 96, "validation": 0, "test": 24}
    assert summary["validation_accuracy"] is None
    assert summary["chosen_epoch"] == 2
    assert summary["test_accuracy"] == rows[-1]["test_accuracy"] == summary["last_test_accuracy"]
    assert (folder / "model" / "model.safetensors").read_bytes() == (folder / "last" / "model.safetensors").read_bytes()


def test_augmented_images_go_on_exactly_too(tmp_path, monkeypatch, image_run):
    config = image_run(augment=True, dropout=0.2)
    whole = files(train(config, tmp_path / "whole"))
    interrupt(monkeypatch, cut_power)
    with pytest.raises(PowerCut):
        train(config, tmp_path / "cut")
    assert files(train(config, tmp_path / "cut")) == whole


def test_a_run_that_was_cut_off_before_its_end_was_written_does_not_train_on(tmp_path, monkeypatch, image_run):
    config = image_run(stop_accuracy=0.001)

    def no_disk(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(run, "write_results", no_disk)
        with pytest.raises(OSError, match="disk full"):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 1
    assert is_complete(tmp_path / "run", config)


def test_best_weights_with_a_flipped_bit_are_refused_at_the_end(tmp_path, monkeypatch, image_run):
    config, best = image_run(stop_accuracy=0.001), tmp_path / "run" / "best.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_results", lambda *_: cut_power())
        with pytest.raises(PowerCut):
            train(config, tmp_path / "run")
    sound = best.read_bytes()
    best.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"best\.safetensors are damaged; begin anew with --force"):
        train(config, tmp_path / "run")
    assert not is_complete(tmp_path / "run", config)
    best.write_bytes(sound)
    assert is_complete(train(config, tmp_path / "run"), config)


def test_ctrl_c_is_a_keyboard_interrupt_and_leaves_a_run_to_go_on(tmp_path, monkeypatch, image_run, ctrl_c):
    config = image_run()
    interrupt(monkeypatch, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.json",
        "metrics.csv",
        "mirrormax.json",
        "resume.ckpt",
        "best.safetensors",
    }
    assert is_complete(train(config, tmp_path / "run"), config)


def test_a_finished_run_is_whole_and_not_done_again(tmp_path, monkeypatch, text_run):
    config = text_run(epochs=2)
    folder = train(config, tmp_path / "run")
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "metrics.csv", "timing.csv", "summary.json", "mirrormax.json", "model", "last"}
    rows, told = read_metrics(folder), json.loads((folder / "summary.json").read_text())
    assert [row["epoch"] for row in rows] == [1, 2]
    chosen = rows[told["chosen_epoch"] - 1]
    assert chosen["validation_accuracy"] == max(row["validation_accuracy"] for row in rows)
    assert told["test_accuracy"] == chosen["test_accuracy"]
    assert told["best_test_accuracy"] == max(row["test_accuracy"] for row in rows)
    assert told["examples"] == {"train": 86, "validation": 10, "test": 24}
    assert not told["diverged"]
    monkeypatch.setattr(run, "prepare", cut_power)
    assert train(config, folder) == folder


def test_the_saved_model_is_that_of_the_chosen_epoch(tmp_path, text_run):
    config = text_run(epochs=3, optimizer="adamw", lr=0.05)
    folder = train(config, tmp_path / "run")
    checkpoint, told = load_model(folder / "model"), json.loads((folder / "summary.json").read_text())
    assert checkpoint.classes == ("bad", "good")
    assert checkpoint.training["p"] == config.p
    test = prepare(config).splits[2]
    ids, labels = test.__getitems__(list(range(len(test))))
    accuracy = (checkpoint.model(ids).argmax(-1) == labels).double().mean().item()
    assert accuracy == pytest.approx(told["test_accuracy"])
    last = load_model(folder / "last").model
    assert (last(ids).argmax(-1) == labels).double().mean().item() == pytest.approx(told["last_test_accuracy"])


def test_a_target_of_zeros_is_reached_before_an_epoch_is_kept_or_stopped_at(tmp_path, image_run):
    config = image_run(epochs=4, optimizer="mirror", sparsity=0.8, stop_accuracy=0.001)
    folder = train(config, tmp_path / "run")
    early, kept = read_metrics(folder)[0], load_model(folder / "model").model
    assert early["zeros"] < 0.8
    matrices = [part.weight for part in kept.modules() if isinstance(part, torch.nn.Linear)][:-1]
    pruned = sum(int((w == 0).sum()) for w in matrices) / sum(w.numel() for w in matrices)
    assert pruned == pytest.approx(0.8, abs=0.05)  # the head is not among the matrices, nor is the share of each fixed
    assert len(read_metrics(folder)) < 4


def test_training_stops_at_an_accuracy(tmp_path, image_run):
    folder = train(image_run(epochs=50, stop_accuracy=0.001), tmp_path / "run")
    assert len(read_metrics(folder)) == 1


def test_a_loss_that_is_no_number_stops_the_training_and_is_told(tmp_path, image_run):
    folder = train(image_run(epochs=5, optimizer="sgd", lr=1e30), tmp_path / "run")
    rows = read_metrics(folder)
    assert len(rows) == 1
    assert not np.isfinite(rows[0]["train_loss"])
    assert json.loads((folder / "summary.json").read_text())["diverged"] is True


def test_another_run_in_the_folder_is_refused_by_what_differs_unless_forced(finished, image_run):
    second, folder = image_run(epochs=1, p=3.0, seed=4), finished[1]
    before = files(folder)
    with pytest.raises(ValueError, match="differs in p, seed"):
        train(second, folder)
    assert files(folder) == before
    (folder / "notes.txt").write_text("mine")
    train(second, folder, force=True)
    assert is_complete(folder, second)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_other_things_is_refused_and_kept(tmp_path, image_run, force):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "config.json").write_text('{"name": "another program"}')
    before = files(tmp_path)
    with pytest.raises(ValueError, match="holds files that are not of a training run"):
        train(image_run(), tmp_path, force=force)
    assert files(tmp_path) == before


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_damaged_or_malicious_checkpoint_is_refused_and_never_executed(tmp_path, monkeypatch, image_run):
    config, folder = image_run(), tmp_path / "run"
    interrupt(monkeypatch, cut_power)
    with pytest.raises(PowerCut):
        train(config, folder)
    path, bomb = folder / "resume.ckpt", tmp_path / "boom"
    whole = path.read_bytes()
    torch.save({"state_dict": Bomb(bomb)}, tmp_path / "bomb.ckpt")
    torch.save([1, 2], tmp_path / "list.ckpt")
    bombs = [(tmp_path / "bomb.ckpt").read_bytes(), pickle.dumps(Bomb(bomb))]
    for content in [b"", whole[:100], whole[:-200], b"x" * 500, *bombs, (tmp_path / "list.ckpt").read_bytes()]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"(is damaged|is no checkpoint).*; begin anew with --force"):
            train(config, folder)
        assert path.read_bytes() == content
    assert not bomb.exists()
    path.write_bytes(whole)
    assert is_complete(train(config, folder), config)


def test_mixed_precision_trains_and_keeps_whole_weights(tmp_path, text_run):
    folder = train(text_run(epochs=1, precision="bf16-mixed"), tmp_path / "run")
    assert {value.dtype for value in load_file(folder / "last/model.safetensors").values()} == {torch.float32}
    assert np.isfinite(read_metrics(folder)[0]["train_loss"])


def test_mixed_precision_is_refused_where_torch_would_die_of_it(tmp_path, text_run, monkeypatch):
    monkeypatch.setattr(machine, "BFLOAT16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    machine.has_bfloat16.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"precision='bf16-mixed' .* ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
            train(text_run(epochs=1, precision="bf16-mixed"), tmp_path / "run")
    finally:
        machine.has_bfloat16.cache_clear()
    assert not (tmp_path / "run").exists()


def test_a_question_about_bfloat16_that_fails_otherwise_refuses_nothing(monkeypatch, tmp_path):
    (tmp_path / "probe.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.chdir(tmp_path)  # from which nothing is imported
    monkeypatch.setattr(machine, "BFLOAT16", "import probe")
    machine.has_bfloat16.cache_clear()
    assert machine.has_bfloat16()
    machine.has_bfloat16.cache_clear()


def test_half_precision_needs_a_gpu(tmp_path, image_run):
    with pytest.raises(ValueError, match="precision='16-mixed' needs a GPU"):
        train(image_run(precision="16-mixed"), tmp_path / "run", machine=Machine(accelerator="cpu"))
    assert not (tmp_path / "run").exists()


def test_summed_losses_are_reported_as_means(tmp_path, image_run):
    mean = train(image_run(epochs=1, lr=1e-12), tmp_path / "mean")
    total = train(image_run(epochs=1, lr=1e-12, reduction="sum"), tmp_path / "sum")
    for split in ("train", "validation", "test"):
        assert read_metrics(mean)[0][f"{split}_loss"] == pytest.approx(read_metrics(total)[0][f"{split}_loss"], 1e-5)


def test_logs_of_others_are_neither_replaced_nor_written_through_a_link(tmp_path, finished):
    (config, folder), mine, where = finished, tmp_path / "mine", Machine(tensorboard=True)
    for place in (mine, folder / "logs"):
        (place / "tensorboard-1").mkdir(parents=True)
        (place / "tensorboard-1" / "notes").write_text("mine")
    train(config, folder, machine=where, force=True)
    assert [path.name for path in (folder / "logs/tensorboard-1").iterdir()] == ["notes"]
    assert list((folder / "logs/tensorboard-2").glob("events.out.tfevents.*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "logs").symlink_to(mine)
    with pytest.raises(ValueError, match="logs is a link"):
        train(config, tmp_path / "other", machine=where)
    assert [path.name for path in mine.iterdir()] == ["tensorboard-1"]


def test_a_run_killed_at_its_very_end_is_tidied(finished):
    config, folder = finished
    before = files(folder)
    manifest = json.loads((folder / "mirrormax.json").read_text())
    manifest["files"] |= {"resume.ckpt": None, "best.safetensors": None}
    (folder / "mirrormax.json").write_text(json.dumps(manifest))
    for name in ("resume.ckpt", ".mirrormax-abcd1234-resume.ckpt", "model/.mirrormax-abcd1234-model.safetensors"):
        (folder / name).write_bytes(b"half")
    assert files(train(config, folder)) == before
    assert not (folder / "resume.ckpt").exists()


def test_a_run_killed_before_anything_was_whole_begins(tmp_path, image_run):
    config, folder = image_run(epochs=1), tmp_path / "run"
    folder.mkdir()
    (folder / ".mirrormax-abcd1234-mirrormax.json").write_text('{"kind": ')
    assert is_complete(train(config, folder), config)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["model/model.safetensors", "metrics.csv", "last/config.json", "summary.json"])
def test_a_finished_run_with_a_changed_byte_is_refused(finished, name):
    config, folder = finished
    path = folder / name
    whole = path.read_bytes()
    half = len(whole) // 2
    for content in (whole[:half], b"", whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"is damaged: {name} is not as it was written; give another folder, or"):
            train(config, folder)
    path.write_bytes(whole)
    assert is_complete(folder, config)


def test_a_run_with_a_damaged_manifest_is_refused(finished):
    config, folder = finished
    path = folder / "mirrormax.json"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"[]"):
        path.write_bytes(content)
        for force in (False, True):  # nothing says any more which files are ours
            with pytest.raises(ValueError, match=r"mirrormax\.json is no manifest that this version reads"):
                train(config, folder, force=force)
    path.write_bytes(whole)
    assert is_complete(folder, config)
