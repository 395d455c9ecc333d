"""The transformers against plain re-implementations that take no short cut."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from mirrormax.nets import (
    SelfAttention,
    TransformerClassifier,
    TransformerConfig,
    VisionConfig,
    VisionTransformer,
    drawing_from,
    without_memory,
)

TEXT = TransformerConfig(vocab_size=40, max_length=12, dim=12, hidden=20, blocks=3, heads=3, dropout=0.0)
IMAGE = VisionConfig(
    image_size=6, patch=2, channels=2, classes=4, dim=10, hidden=14, blocks=2, heads=3, head_dim=5, dropout=0.0
)


def text_model(**changes):
    torch.manual_seed(1)
    return TransformerClassifier(TransformerConfig(**{**vars(TEXT), **changes})).eval()


def vision_model():
    torch.manual_seed(2)
    return VisionTransformer(IMAGE).eval()


def ids(lengths, seed=0, vocab=40):
    """Rows of ids that are not padding, filled up with padding."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(1, vocab, (length,), generator=generator)
    return rows


PADDED = text_model()


def plain_attention(x, layer, heads, present):
    """All query rows of every head, one head after the other; also the maps (B, heads, T, T)."""
    outputs, maps = [], []
    for q, k, v in zip(*(layer.get_submodule(n).weight.chunk(heads) for n in ("query", "key", "value")), strict=True):
        logits = (x @ q.T) @ (x @ k.T).mT / math.sqrt(len(q))
        weights = torch.exp(logits - logits.amax(-1, keepdim=True)) * present[:, None, :]
        weights = weights / weights.sum(-1, keepdim=True)
        maps.append(weights)
        outputs.append(weights @ (x @ v.T))
    mixed = torch.cat(outputs, -1) @ layer.output.weight.T
    return mixed if layer.output.bias is None else mixed + layer.output.bias, torch.stack(maps, 1)


def normalised(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + norm.eps) * norm.weight + (
        0 if norm.bias is None else norm.bias
    )


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def plain_text(model, rows):
    present = (rows != 0).to(model.tokens.weight.dtype)
    x = model.tokens.weight[rows] + model.positions.weight[: rows.shape[1]]
    maps = []
    for block in model.blocks:
        change, weights = plain_attention(x, block.attention, model.config.heads, present)
        maps.append(weights)
        x = normalised(x + change, block.attention_norm)
        hidden = x @ block.expand.weight.T
        hidden = hidden.clamp(min=0) if model.config.activation == "relu" else gelu(hidden)
        x = normalised(x + hidden @ block.contract.weight.T, block.hidden_norm)
    logits = x[:, 0] @ model.head.weight.T
    if model.config.classes == 2:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits, torch.stack(maps)


def plain_vision(model, pixels):
    config = model.config
    rows = []
    for top in range(0, config.image_size, config.patch):
        for left in range(0, config.image_size, config.patch):
            rows.append(pixels[:, :, top : top + config.patch, left : left + config.patch].flatten(1))
    tokens = torch.stack(rows, 1) @ model.patches.weight.T + model.patches.bias
    x = torch.cat([model.class_token.expand(len(pixels), 1, -1), tokens], 1) + model.positions
    present, maps = torch.ones(x.shape[:2], dtype=x.dtype), []
    for block in model.blocks:
        change, weights = plain_attention(normalised(x, block.attention_norm), block.attention, config.heads, present)
        maps.append(weights)
        x = x + change
        hidden = normalised(x, block.hidden_norm) @ block.expand.weight.T + block.expand.bias
        x = x + gelu(hidden) @ block.contract.weight.T + block.contract.bias
    return normalised(x, model.norm)[:, 0] @ model.head.weight.T + model.head.bias, torch.stack(maps)


CASES = {
    "binary text": (text_model, lambda: ids([5, 12, 1, 8]), plain_text),
    "text of version 0.1": (lambda: text_model(activation="relu", norm_bias=True), lambda: ids([3, 7]), plain_text),
    "text of five classes": (lambda: text_model(classes=5), lambda: ids([3, 7]), plain_text),
    "image": (vision_model, lambda: torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0)), plain_vision),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_maps_and_gradients_are_those_of_computing_every_row(name):
    make, inputs, plain = CASES[name]
    model, inputs = make().double(), inputs()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    expected, expected_maps = plain(model, inputs)
    logits, maps = model(inputs, attention=True)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(maps, expected_maps)
    torch.testing.assert_close(model(inputs), logits, rtol=0, atol=0)
    parameters = list(model.parameters())
    labels = torch.arange(len(inputs)) % model.config.classes
    grads = torch.autograd.grad(functional.cross_entropy(model(inputs), labels), parameters)
    expected_grads = torch.autograd.grad(functional.cross_entropy(expected, labels), parameters)
    for (parameter, _), grad, wanted in zip(model.named_parameters(), grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, wanted, msg=lambda text, parameter=parameter: f"{parameter}: {text}")


@settings(max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(0, 2**31))
def test_padding_never_changes_a_result(lengths, seed):
    model, batch = PADDED, ids(lengths, seed)
    with torch.no_grad():
        together, maps = model(batch, attention=True)
        for row, length in enumerate(lengths):
            alone, own_maps = model(batch[row : row + 1, :length], attention=True)
            torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-5)
            torch.testing.assert_close(maps[:, row, :, :length, :length], own_maps[:, 0], rtol=0, atol=1e-5)


def test_maps_are_distributions_over_what_is_no_padding():
    batch = ids([4, 9, 1])
    _, maps = text_model()(batch, attention=True)
    assert maps.shape == (3, 3, 3, 9, 9)
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 3, 3, 9))
    padding = (batch == 0)[None, :, None, None, :].expand_as(maps)
    assert padding.any()
    assert (maps[padding] == 0).all()


def test_two_classes_have_the_papers_loss():
    model, batch, labels = text_model(), ids([5, 3, 8, 2]), torch.tensor([1, 0, 1, 1])
    logits = model(batch)
    assert model.head.weight.shape == (1, 12)
    assert (logits[:, 0] == 0).all()
    for reduction in ("mean", "sum"):
        torch.testing.assert_close(
            functional.cross_entropy(logits, labels, reduction=reduction),
            functional.binary_cross_entropy_with_logits(logits[:, 1], labels.float(), reduction=reduction),
        )


def test_text_models_have_no_biases_and_vision_models_none_on_queries_keys_and_values():
    assert not [name for name, _ in text_model().named_parameters() if name.endswith("bias")]
    for block in vision_model().blocks:
        assert {n for n, _ in block.attention.named_parameters() if n.endswith("bias")} == {"output.bias"}


@pytest.mark.parametrize("size", [3, 4, 6])
def test_the_papers_sizes_have_the_papers_numbers_of_weights(size):
    model = without_memory(TransformerClassifier, TransformerConfig(vocab_size=30522, blocks=size, heads=size))
    assert all(parameter.is_meta for parameter in model.parameters())
    block = 4 * 384**2 + 2 * 384 * 1536 + 2 * 384
    assert sum(p.numel() for p in model.parameters()) == (30522 + 512) * 384 + size * block + 384
    for part in ("query", "key", "value"):
        count = sum(block.attention.get_submodule(part).weight.numel() for block in model.blocks)
        assert count == {3: 442_368, 4: 589_824, 6: 884_736}[size]


def test_the_papers_vision_transformer_has_its_number_of_key_weights():
    model = without_memory(VisionTransformer, VisionConfig())
    assert model.positions.shape == (145, 512)
    assert sum(block.attention.key.weight.numel() for block in model.blocks) == 1_572_864


def test_dropout_acts_in_training_alone_and_not_on_embeddings():
    torch.manual_seed(0)
    model, batch = text_model(dropout=0.5), ids([6, 6])
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.embed(batch), model.eval().embed(batch))


@pytest.mark.parametrize("first_only", [False, True])
def test_dropout_of_attention_keeps_the_mean_and_draws_from_the_threads_generator(first_only):
    torch.manual_seed(0)
    layer, x = SelfAttention(8, 2, dropout=0.5).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    expected = layer.eval()(x, first_only=first_only)
    layer.train()
    before, generator = torch.get_rng_state(), torch.Generator().manual_seed(1)
    with drawing_from(generator), torch.no_grad():
        drawn = torch.stack([layer(x, first_only=first_only) for _ in range(4000)])
    assert torch.equal(torch.get_rng_state(), before)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - expected).abs() < 5 * error).all()
    assert (drawn.std(0) > 0).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dim": 10}, ValueError, "dim must be a multiple of heads, got dim=10 and heads=3"),
        ({"heads": 0}, ValueError, "heads must be at least 1, got 0"),
        ({"blocks": 10**6}, ValueError, "blocks must be at most 1024"),
        ({"hidden": 2.0}, TypeError, "hidden must be an integer, got 2.0"),
        ({"max_length": True}, TypeError, "max_length must be an integer"),
        ({"classes": 1}, ValueError, "classes must be at least 2"),
        ({"classes": 2.5}, TypeError, "classes must be an integer"),
        ({"pad_id": 40}, ValueError, "pad_id must be a finite number"),
        ({"pad_id": 0.5}, TypeError, "pad_id must be an integer"),
        ({"dropout": 1.0}, ValueError, "dropout must be a finite number at least 0 and less than 1"),
        ({"activation": "tanh"}, ValueError, "activation"),
        ({"norm_bias": 1}, TypeError, "norm_bias"),
        ({"embedding_std": float("nan")}, ValueError, "embedding_std must be a finite number greater than 0"),
    ],
    ids=str,
)
def test_text_sizes_that_make_no_model_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        TransformerConfig(**{**vars(TEXT), **change})


def test_image_sizes_that_make_no_model_are_refused():
    with pytest.raises(ValueError, match="image_size must be a multiple of patch, got image_size=6 and patch=4"):
        VisionConfig(image_size=6, patch=4)
    with pytest.raises(ValueError, match="larger than any machine's memory"):
        without_memory(VisionTransformer, VisionConfig(image_size=2**31 - 1, patch=1))


def test_inputs_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="ids have 13 tokens, more than max_length=12"):
        text_model()(ids([13]))
    with pytest.raises(ValueError, match=r"pixels must have shape \(B, 2, 6, 6\), got \(1, 3, 6, 6\)"):
        vision_model()(torch.zeros(1, 3, 6, 6))
