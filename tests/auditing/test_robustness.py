"""What rounding changes: the prediction against noise that is drawn, the certificate against rounding itself."""

import pytest
import torch
from audited_architectures import batch_of, make
from audited_models import text_model, words

import mirrormax
from mirrormax.auditing import adapter_for, watching
from mirrormax.auditing.robustness import changed, rounded


@pytest.mark.parametrize(("scheme", "levels"), [("int8", 127), ("int4", 7), ("int3", 3)])
def test_rounded_rows_have_so_many_levels_and_are_near(scheme, levels):
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    found = changed(weight, scheme)
    step = weight.abs().amax(1, keepdim=True) / levels
    torch.testing.assert_close(found / step, (found / step).round(), atol=1e-4, rtol=0)
    assert ((found - weight).abs() <= step / 2 + 1e-6).all()
    torch.testing.assert_close(changed(weight, f"{scheme}/group"), found)  # rows are shorter than a group
    one_scale = changed(weight, f"{scheme}/tensor")
    assert (one_scale - weight).abs().max() <= weight.abs().max() / levels / 2 + 1e-6


def test_pruning_leaves_the_largest():
    weight = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    assert changed(weight, 0.5).tolist() == [[0.0, -2.0], [0.0, 4.0]]
    by_inputs = changed(weight, "0.5/wanda", torch.tensor([9.0, 1.0]))
    assert by_inputs.tolist() == [[1.0, 0.0], [0.5, 0.0]]  # 9 > 2 and 4.5 > 4


@pytest.mark.parametrize("name", ["bert", "llama-yarn", "gpt2", "falcon-grouped", "gpt-oss"])
def test_weights_come_back_and_certified_selections_never_change(name):
    model, batch = make(name), batch_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = mirrormax.audit(
        model, [batch], samples=2, rivals=2, controls=0, shuffled=0, robustness=("int8", "bf16"), held_out=[batch]
    )
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    first = [one for one in found.robustness if one.layer == 0]  # whose inputs rounding leaves as they are
    assert any(one.certified > 0 for one in first)
    assert all(one.measured <= 1 - one.certified + 1e-9 for one in first)


@pytest.mark.parametrize("name", ["qwen3", "deberta-v2"])
def test_nothing_is_certified_where_keys_are_normalised_or_positions_use_the_same_weights(name):
    found = mirrormax.audit(
        make(name), [batch_of(name)], samples=2, rivals=2, controls=0, shuffled=0, robustness=("int8",)
    )
    assert {one.certified for one in found.robustness} == {None}
    assert all(0 <= one.predicted <= 1 for one in found.robustness)


def test_the_predicted_share_is_that_of_noise_of_the_same_size():
    """Queries and keys of one layer changed by drawn noise, many times, beside the formula."""
    torch.manual_seed(0)
    model, ids = text_model(blocks=1), words(24)
    found = mirrormax.audit(model, [ids], samples=2, rivals=2, controls=0, shuffled=0, robustness=("int3",))
    predicted = sum(one.predicted for one in found.robustness) / len(found.robustness)
    attention, flips, count = model.blocks[0].attention, 0.0, 0
    parts = [attention.query.weight, attention.key.weight]
    sizes = [(changed(one.detach(), "int3") - one.detach()).square().mean().sqrt() for one in parts]
    with watching(adapter_for(model)) as watch, torch.no_grad():
        (view,) = watch.run(ids)
        mask = view.mask & (ids != 0)[:, :, None]
        own = view.logits().masked_fill(~mask[:, None], -torch.inf).argmax(-1)
        for _ in range(40):
            kept = [one.clone() for one in parts]
            for one, size in zip(parts, sizes, strict=True):
                one.add_(torch.randn_like(one) * size)
            (view,) = watch.run(ids)
            new = view.logits().masked_fill(~mask[:, None], -torch.inf).argmax(-1)
            there = mask.any(-1)[:, None].expand(new.shape)
            flips, count = flips + float((new != own)[there].sum()), count + int(there.sum())
            for one, before in zip(parts, kept, strict=True):
                one.copy_(before)
    assert predicted == pytest.approx(flips / count, rel=0.35)


def test_rounding_is_undone():
    weight = torch.randn(3, 4)
    before = weight.clone()
    with rounded([(weight, None)], "int3"):
        assert not torch.equal(weight, before)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("value", [("int5",), (1.5,), "int8", (0,)])
def test_schemes_that_there_are_not_are_refused_by_name(value):
    with pytest.raises((ValueError, TypeError), match="robustness"):
        mirrormax.audit(text_model(), [words()], robustness=value)


def test_held_out_texts_without_anything_to_measure_on_them_are_refused():
    with pytest.raises(ValueError, match="held_out"):
        mirrormax.audit(text_model(), [words()], held_out=[words()])
