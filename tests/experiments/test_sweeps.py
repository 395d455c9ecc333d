"""Fair sweeps: tuned on validation with equal budgets, every seed its own start, nothing done twice."""

from dataclasses import replace

import numpy as np
import pytest
import tiny

from mirrormax.experiments import Results, Work, _sweeps, table1, vit
from mirrormax.experiments._measurements import DIFFERS, MET
from mirrormax.experiments._sweeps import Contender, Sweep, run_sweep
from mirrormax.nets import load_model

SWEEP = Sweep(tiny.TINY_IMAGES, (Contender("md", 1.5, (1e-6, 0.3), 2), Contender("adamw", 2.0, (1e-8, 1e-2), 2)), 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return run_sweep(SWEEP, Work(runs=runs)), runs


def test_the_step_size_is_the_one_that_validation_prefers(finished):
    data, _ = finished[0]
    for name in data["names"]:
        assert data[f"{name}/lr"] == data[f"{name}/lrs"][np.argmax(data[f"{name}/tuning"])]


def test_seeds_have_first_weights_of_their_own(finished):
    _, folders = finished[0]
    first, second = (load_model(folder / "last").model for folder in folders["ℓ1.5"])
    assert not np.allclose(first.head.weight.detach(), second.head.weight.detach(), atol=1e-3)


def test_a_finished_sweep_is_not_trained_again_unless_anew(finished, monkeypatch):
    runs = finished[1]
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/mirrormax.json")}
    again = run_sweep(SWEEP, Work(runs=runs))
    assert again[1] == finished[0][1]
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/mirrormax.json")} == before
    asked = []
    monkeypatch.setattr(_sweeps, "_train", lambda config, folder, data_dir, force: asked.append(force) or folder)
    work = Work(runs=runs, anew=True)
    for _ in range(2):
        _sweeps._train_all([tiny.TINY_IMAGES], work, 1.0)
    assert asked == [True, False]


def test_a_single_step_size_is_not_tried(tmp_path, monkeypatch):
    asked, train = [], _sweeps._train
    monkeypatch.setattr(_sweeps, "_train", lambda config, *rest: asked.append(config.epochs) or train(config, *rest))
    run_sweep(replace(SWEEP, contenders=(Contender("md", 1.5, (0.3,), 2),), tuning_epochs=1), Work(runs=tmp_path))
    assert asked == [SWEEP.base.epochs] * 2


def test_unequal_budgets_are_refused():
    with pytest.raises(ValueError, match="same number of step sizes"):
        Sweep(tiny.TINY_IMAGES, (Contender("md", 2.0, (0.1,), 1), Contender("adamw", 2.0, (0.1, 0.2), 1)), 1)


def test_a_run_of_another_revision_is_trained_anew_and_kept_apart(finished, monkeypatch):
    asked = []
    monkeypatch.setattr(_sweeps, "_train", lambda config, folder, *_: asked.append(folder) or folder)
    _sweeps._train_all([tiny.TINY_IMAGES], Work(runs=finished[1]), 1.0)
    monkeypatch.setattr("mirrormax.training.inputs.REVISION", 10**6)
    _sweeps._train_all([tiny.TINY_IMAGES], Work(runs=finished[1]), 1.0)
    assert len(set(asked)) == 2


def test_results_over_changed_data_are_not_current(tmp_path):
    file = tmp_path / "reviews.csv"
    sweep = Sweep(replace(tiny.TINY_TEXTS, data=str(file)), SWEEP.contenders, 2)
    config, kept = _sweeps.TextConfig((("tiny", sweep),)), Results(tmp_path / "out")
    seen = []
    for text in ("text,label\ngood,1\n", "text,label\nfine,1\n"):
        file.write_text(text)
        seen.append([kept.identity(name, config)["data"] for name in ("table1", "fig8", "fig9")])
    assert all(before != after for before, after in zip(*seen, strict=True))
    assert {"reviews.csv", "pivots.csv"} <= seen[0][2].keys()
    file.unlink()
    assert kept.load("table1", config) is None


@pytest.mark.parametrize("module", [table1, vit])
def test_the_data_of_a_folder_is_used_where_it_is_there(module, tmp_path):
    config = module.PROFILES["small"]
    assert module.on_data(config, tmp_path) == config
    for name in ("imdb", "cifar-10-batches-bin"):
        (tmp_path / name).mkdir()
    found = module.on_data(config, tmp_path)
    base = found.sweep.base if module is vit else found.sizes[0][1].base
    assert base.data in ("imdb", "cifar10")


def test_the_paper_profile_has_the_paper_sizes_and_step_sizes():
    sizes = dict(table1.PROFILES["paper"].sizes)
    assert [sweep.base.blocks for sweep in sizes.values()] == [3, 4, 6]
    steps = {contender.p: contender.lrs for contender in sizes["6 blocks"].contenders}
    assert steps == {1.1: (1e-3,), 2.0: (1e-3,), 3.0: (1e-5,)}
    assert all(contender.seeds == 10 for sweep in sizes.values() for contender in sweep.contenders)


def test_a_table_at_a_paper_size_is_held_against_its_cell():
    names = np.array(["ℓ1.1", "ℓ2"])
    data = {"sizes": np.array(["3 blocks"]), "3 blocks/names": names}
    for name, value in (("ℓ1.1", 0.8345), ("ℓ2", 0.70)):
        for key in _sweeps.NUMBERS:
            data[f"3 blocks/{name}/{key}"] = np.array([value, value + 1e-4])
        data[f"3 blocks/{name}/lr"] = np.array(0.1)
    verdicts = {(row.column, row.quantity): row.verdict for row in tiny.measured("table1", data)}
    assert verdicts["ℓ1.1", "best test epoch, percent, 3 blocks"] == MET
    assert verdicts["ℓ2", "best test epoch, percent, 3 blocks"] == DIFFERS
    assert verdicts["ℓ1.1 above ℓ2", "test accuracy, points, 3 blocks"] == MET


def test_a_contender_is_named_as_in_the_figures():
    assert [replace(SWEEP.contenders[0], p=p).name for p in (1.1, 2.0)] == ["ℓ1.1", "ℓ2"]
    assert SWEEP.contenders[1].name == "AdamW"
