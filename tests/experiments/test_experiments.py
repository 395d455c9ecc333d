"""The experiments at a size that takes a moment, and what they should show."""

import json

import numpy as np

from mirrormax.experiments import EXPERIMENTS, run_experiment, sparsity, step_size


def plain(items):
    return items


def test_smaller_p_gives_sparser_weights():
    data = sparsity.run(sparsity.Config(steps=300), plain)
    counts = [sparsity.entries_for_mass(W, 0.9) for W in data["W"]]
    assert counts[0] < 0.3 * counts[1] < counts[2]
    assert data["loss"].shape == (3, 300)
    assert np.all(data["loss"][:, -1] < data["loss"][:, 0])


def test_entries_for_mass_counts_the_largest():
    assert sparsity.entries_for_mass(np.array([[8.0, -1.0], [1.0, 0.0]]), 0.8) == 1
    assert sparsity.entries_for_mass(np.array([[8.0, -1.0], [1.0, 0.0]]), 0.81) == 2
    assert sparsity.entries_for_mass(np.ones((2, 5)), 0.9) == 9


def test_the_step_size_experiment_learns_and_spoils_itself_at_absurd_steps():
    config = step_size.Config(p=(1.5,), multiples=(1.0, 100.0), epochs=2)
    data = step_size.run(config, plain)
    assert data["accuracy"][0, 0] > 0.2
    assert data["accuracy"][0, 1] < 0.2
    assert data["lr"][0, 1] == 100 * data["lr"][0, 0]


def test_results_are_plain_files_with_their_configuration(tmp_path, monkeypatch):
    small = sparsity.Config(steps=20)
    monkeypatch.setattr(sparsity, "Config", lambda: small)
    result = run_experiment("sparsity", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == result
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "data.npz", "summary.json"]


def test_every_experiment_has_the_three_parts():
    for module in (sparsity, step_size):
        assert module.__name__.rpartition(".")[2] in EXPERIMENTS
        assert all(hasattr(module, part) for part in ("Config", "run", "summary"))
