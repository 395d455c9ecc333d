"""What is measured of a cut model: layers without their empty rows, and sentences that say what was timed."""

import pytest
import torch
from audited_models import hugging_face, hugging_face_batch, text_model, words
from torch import nn

from mirrormax import prune
from mirrormax.auditing.cuts import CutReport, Smaller, Timing, removed


@pytest.mark.parametrize("structured", ["row", "head"])
@pytest.mark.parametrize("name", ["ours", "bert"])
def test_removed_rows_and_columns_leave_the_output_as_it_was(name, structured):
    model = (text_model() if name == "ours" else hugging_face(name)).eval()
    call = (lambda: model(words())) if name == "ours" else (lambda: model(**hugging_face_batch(name)).logits)
    prune(model, 0.5, structured=structured).finish()
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    with torch.no_grad():
        expected = call()
        with removed(model).put_in():
            inside = [module for module in model.modules() if isinstance(module, Smaller)]
            found = call()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert inside
    assert all(module.small.numel() < module.weight.numel() for module in inside)
    assert [module for module in model.modules() if type(module) is nn.Linear] == linear


def test_layers_without_empty_rows_and_columns_are_left_alone():
    assert not removed(text_model())


def test_an_empty_layer_gives_its_bias():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    assert torch.equal(Smaller(layer)(torch.randn(4, 3)), layer.bias.detach().expand(4, 2))


def report(timing):
    return CutReport("accuracy", "margin", [(0.0, 0.9)], [(0.0, 0.9)], 0.8, 0.7, {"a": (80, 100)}, timing)


def test_only_what_was_timed_is_told():
    _, _, told = report(Timing(1.0, 1.5, 0.5, 0.25, 12, (2.0, 1.0))).sentences(400, 100)
    assert "compressed sparse rows take 1.50 times" in told
    assert "blocks of 4 x 4 0.50 times" in told
    assert "rows and columns removed takes 0.50 times" in told
    _, _, told = report(Timing(1.0, 1.5, None, 0.25, 12, None)).sentences(400, 100)
    assert "blocks" not in told
    assert "removed" not in told
    assert len(report(None).sentences(400, 100)) == 2
    assert "cut by margin" in report(None).sentences(400, 100)[0]
