"""Layers that skip zeros: the same outputs, fewer bytes, and the dense layers back."""

import pytest
import torch
from audited_models import hugging_face, hugging_face_batch, text_model, words
from torch import nn

from mirrormax import prune
from mirrormax.pruning import SmallerLinear, SparseLinear, compress


@pytest.mark.parametrize("structured", [None, "row", "head"])
@pytest.mark.parametrize("name", ["ours", "bert"])
def test_a_compressed_model_answers_as_before_and_can_be_put_back(name, structured):
    model = (text_model() if name == "ours" else hugging_face(name)).eval()
    call = (lambda: model(words())) if name == "ours" else (lambda: model(**hugging_face_batch(name)).logits)
    prune(model, 0.8 if structured is None else 0.5, structured=structured).finish()
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    with torch.no_grad():
        expected = call()
        found = compress(model)
        torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-5)
    kind = SparseLinear if structured is None else SmallerLinear
    assert found.layers
    assert all(isinstance(model.get_submodule(path), kind) for path in found.layers)
    found.undo()
    assert [module for module in model.modules() if type(module) is nn.Linear] == linear


def test_bytes_are_those_of_what_is_kept():
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 20))
    prune(model, 0.9).finish()
    dense, sparse = compress(model).bytes
    assert dense == 4 * (100 * 50 + 50 * 20)
    assert sparse == (4 + 4) * (500 + 100) + 4 * (51 + 21)
    assert not [param for param in model.parameters() if param.ndim == 2]


def test_layers_with_few_zeros_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8))
    prune(model, 0.3).finish()
    assert not compress(model).layers
    assert type(model[0]) is nn.Linear


def test_an_empty_layer_gives_its_bias():
    model = nn.Sequential(nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    bias = model[0].bias.detach()
    compress(model)
    assert torch.equal(model(torch.randn(4, 3)), bias.expand(4, 2))


@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (2, 1, 6), (2, 3, 6)])
def test_any_number_of_tokens(shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4))
    prune(model, 0.75).finish()
    x = torch.randn(shape)
    expected = model(x)
    compress(model)
    torch.testing.assert_close(model(x), expected)


def test_a_masked_model_is_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    prune(model, 0.5)
    with pytest.raises(ValueError, match="finish"):
        compress(model)
