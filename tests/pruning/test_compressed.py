"""Layers that skip zeros: the same outputs from fewer bytes."""

import copy

import pytest
import torch
from audited_models import hugging_face, hugging_face_batch, text_model, words
from torch import nn

from mirrormax import prune
from mirrormax.pruning import SparseLinear, compress


@pytest.mark.parametrize("name", ["ours", "bert"])
def test_a_compressed_model_answers_as_before(name):
    model = (text_model() if name == "ours" else hugging_face(name)).eval()
    call = (lambda: model(words())) if name == "ours" else (lambda: model(**hugging_face_batch(name)).logits)
    pruned = prune(model, 0.8)
    pruned.finish()
    with torch.no_grad():
        expected = call()
        compressed = compress(model)
        torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-5)
    assert {f"{path}.weight" for path in compressed.layers} == set(pruned.tensors)
    assert all(isinstance(model.get_submodule(path), SparseLinear) for path in compressed.layers)
    assert not any(module.training for module in model.modules())


def test_bytes_are_those_of_what_is_kept():
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 20))
    prune(model, 0.9).finish()
    compressed = compress(model)
    assert compressed.dense == 4 * (100 * 50 + 50 * 20)
    assert compressed.sparse == (4 + 4) * (500 + 100) + 4 * (51 + 21)
    assert not [param for param in model.parameters() if param.ndim == 2]


def test_layers_with_few_zeros_are_left_alone_unless_that_is_asked_for():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.bfloat16))
    prune(model, 0.5).finish()
    assert not compress(model).layers
    assert compress(model, 0.5).layers == ("0",)
    assert compress(model, 0.5).layers == ()


@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (2, 1, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_tokens(shape, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4, dtype=dtype), nn.Linear(4, 2, bias=False, dtype=dtype))
    prune(model, 0.75).finish()
    nn.init.zeros_(model[1].weight)
    x = torch.randn(shape, dtype=dtype)
    expected = model[0](x), model(x)
    compress(model)
    torch.testing.assert_close((model[0](x), model(x)), expected)


def test_a_compressed_model_can_be_copied():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 8)
    prune(model, 0.75).finish()
    compress(model)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    twin.load_state_dict({name: torch.zeros_like(part) for name, part in twin.state_dict().items()})
    assert not twin(x).any()
    assert model(x).any()


def test_what_cannot_be_compressed_is_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    prune(model, 0.5)
    with pytest.raises(ValueError, match=r"0 is still masked; call finish\(\)"):
        compress(model)
    with pytest.raises(ValueError, match="least must be"):
        compress(model, 1.0)
    with pytest.raises(TypeError, match="model must be"):
        compress([nn.Linear(4, 4)])
