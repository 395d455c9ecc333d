"""The bench of the optimizer's step: everybody gets the same work, and the tables say what is compared with what."""

import pytest
import torch

from mirrormax.bench import optimizer as bench

SMALL = [(8, 4), (16,)]


def test_every_contestant_takes_a_step_from_the_same_weights():
    runs = bench.adamw_steps(SMALL)
    assert sum(name.startswith("MirrorAdamW") for name in runs) == 3 * len(bench.VARIANTS)
    owners = [run.__self__ for run in runs.values() if hasattr(run, "__self__")]
    first = [param.detach().clone() for param in bench.parameters(SMALL)]
    for run in runs.values():
        run()
    for optimizer in owners:
        params = optimizer.param_groups[0]["params"]
        for param, before in zip(params, first, strict=True):
            assert not torch.equal(param, before)
            assert float((param.detach() - before).abs().max()) < 0.1


def test_clipping_is_a_part_of_what_it_is_measured_with():
    params = bench.parameters(SMALL)
    for param in params:
        param.grad = torch.ones_like(param)
    bench.clipped_step(params)()
    assert torch.cat([param.grad.flatten() for param in params]).norm() == pytest.approx(1.0, rel=1e-4)


def test_the_tables_hold_both_comparisons(capsys):
    ratios = bench.beside_adamw("4 x 3072 x 768", SMALL, rounds=1)
    out = capsys.readouterr().out
    assert "clip_grad_norm_, AdamW (fused)" in out
    assert "4 x 3072 x 768, MirrorAdamW p=1.1 (both clip)" in ratios
    assert "4 x 3072 x 768, MirrorAdamW p=1.1 clip=None (both clip)" not in ratios
    assert all(ratio > 0 for ratio in ratios.values())


def test_real_sizes_are_measured_in_both_types_and_with_their_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "in_new_process", lambda code, **_: asked.append(code) or "6.1")
    ratios = bench.real_size(shapes=SMALL, rounds=1)
    assert all(ratio > 0 for ratio in ratios.values())
    assert any("bfloat16" in name for name in ratios)
    assert [ratio for name, ratio in ratios.items() if "peak memory" in name] == [6.1]
    assert str(SMALL) in asked[0]


def test_the_program_that_measures_memory_counts_the_state():
    assert 5 < float(bench.in_new_process(bench.PEAK.format(shapes=[(1024, 4096)]))) < 20
