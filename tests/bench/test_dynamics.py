"""The bench of simulated training at a size that takes a moment."""

import pytest

from mirrormax.bench import dynamics


@pytest.mark.slow
def test_the_cost_of_heads_and_classes_is_told_per_head_and_class(monkeypatch, capsys):
    pytest.importorskip("numba")
    for name, value in {"TRIALS": 2, "SEVERAL_STEPS": 3, "SEVERAL_ROUNDS": 1, "SHAPES": ((2, 3),)}.items():
        monkeypatch.setattr(dynamics, name, value)
    monkeypatch.setattr(
        dynamics,
        "take_turns",
        lambda contestants, *args, **kwargs: {
            name: [(run(), 12.0 if "3 classes" in name else 1.0)[1]] for name, run in contestants.items()
        },
    )
    assert dynamics.several() == {"2 heads, 3 classes, per head and class": pytest.approx(2.0)}
    assert "12.00      6.00                2.00" in capsys.readouterr().out
