"""Each adapter tells the truth about its models, and leaves them as they were."""

import copy
import sys

import pytest
import torch
from audited_models import encoder, hugging_face, hugging_face_batch, image_model, text_model, words
from torch import nn

import mirrormax
from mirrormax.auditing.adapters import Adapter, adapter_for, linear_layer
from mirrormax.auditing.layers import attention_of, watching

FAMILIES = ("bert", "distilbert", "roberta", "vit")


def seen(model, batch):
    adapter = adapter_for(model)
    layers = adapter.layers()
    with watching(adapter, layers) as watch:
        return layers, watch.run(batch)


def recomputed(model, batch):
    return [view.attention() for view in seen(model, batch)[1]]


@pytest.mark.parametrize(
    ("make", "batch"),
    [(text_model, words()), (image_model, torch.randn(4, 1, 12, 12))],
    ids=["text", "images"],
)
def test_our_own_models_attend_as_recomputed(make, batch):
    model = make().eval()
    _, maps = model(batch, attention=True)
    for own, again in zip(maps, recomputed(model, batch), strict=True):
        torch.testing.assert_close(again, own.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_hugging_face_models_attend_as_recomputed(name):
    model, batch = hugging_face(name).eval(), hugging_face_batch(name)
    maps = model(**batch, output_attentions=True).attentions
    found = recomputed(model, batch)
    assert len(found) == 2
    for own, again in zip(maps, found, strict=True):
        torch.testing.assert_close(again, own.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal"])
def test_multihead_attention_attends_as_recomputed(batch_first, masked):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 2, batch_first=batch_first).eval()
    nn.init.normal_(model.in_proj_bias)
    x = torch.randn(3, 5, 16)
    given = x if batch_first else x.transpose(0, 1)
    options = {
        "nothing": {},
        "padding": {"key_padding_mask": torch.arange(5).expand(3, 5) >= torch.tensor([[5], [4], [2]])},
        "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5)},
    }[masked]
    _, own = model(given, given, given, average_attn_weights=False, **options)
    (again,) = recomputed(model, {"query": given, **options})
    torch.testing.assert_close(again, own.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_gives_its_own_outputs_from_the_recomputed_attention(batch_first):
    model = encoder(batch_first)
    x = torch.randn(4, 6, 16) if batch_first else torch.randn(6, 4, 16)
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[1, 3:] = True
    layers, views = seen(model, {"src": x, "src_key_padding_mask": mask})
    for layer, view in zip(layers, views, strict=True):
        attention = attention_of(layer.logits(view.x, view.z), view.mask)
        torch.testing.assert_close(layer.mix(attention, view.x), view.output.double(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_logits_of_one_query_are_those_of_many(bias):
    parts = [nn.Linear(6, 6, bias=bias, dtype=torch.float64) for _ in range(4)]
    layer = linear_layer("plain", 2, *parts, given=parts[1])
    x, z = torch.randn(3, 5, 6, dtype=torch.float64), torch.randn(3, 4, 6, dtype=torch.float64)
    queries, keys = (part(y).unflatten(-1, (2, 3)).transpose(1, 2) for part, y in zip(parts, (z, x), strict=False))
    expected = queries @ keys.mT / 3**0.5
    torch.testing.assert_close(layer.logits(x, z), expected)
    torch.testing.assert_close(layer.logits(x, z[:, 1:2]), expected[:, :, 1:2])


def test_the_bilinear_form_gives_the_logits_up_to_a_constant():
    layers, views = seen(encoder(), torch.randn(3, 5, 16))
    layer, view = layers[1], views[1]
    logits = layer.logits(view.x, view.z)
    for head in range(layer.heads):
        W = layer.weights(head)
        assert W.shape == (16, 17)
        own = torch.einsum("btd,de,bqe->bqt", view.x.double(), W, layer.extended(view.z))
        shift = logits[:, head] - own
        torch.testing.assert_close(shift, shift[..., :1].expand_as(shift), atol=1e-9, rtol=0)


def test_a_model_without_query_bias_has_a_square_form():
    (layer, *_), (view, *_) = seen(text_model(), words())
    assert layer.weights(0).shape == (16, 16)
    torch.testing.assert_close(layer.extended(view.z), view.z.double())


def snapshot(model):
    hooks = [len(part) for m in model.modules() for part in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)]
    modes = [m.training for m in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags = [p.requires_grad for p in model.parameters()]
    return hooks, modes, weights, grads, flags


def assert_same(before, after):
    assert before[0] == after[0]
    assert before[1] == after[1]
    assert before[2].keys() == after[2].keys()
    assert all(torch.equal(before[2][name], after[2][name]) for name in before[2])
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(before[3], after[3], strict=True))
    assert before[4] == after[4]


MAKES = {
    "own": (text_model, words()),
    "torch": (encoder, torch.randn(4, 6, 16)),
    "bert": (lambda: hugging_face("bert"), hugging_face_batch("bert")),
}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_model_is_left_as_it_was(make, fails, grad):
    build, batch = MAKES[make]
    model = build()
    model.train()
    next(model.children()).eval()  # a mixed state must come back too
    first, second = list(model.parameters())[:2]
    first.grad = torch.ones_like(first)
    second.requires_grad_(False)
    before, fused = snapshot(model), torch.backends.mha.get_fastpath_enabled()

    def batches():
        yield batch
        if fails:
            raise RuntimeError("the data ended badly")

    with torch.set_grad_enabled(grad):
        if fails:
            with pytest.raises(RuntimeError, match="ended badly"):
                mirrormax.audit(model, batches(), samples=3, controls=0)
        else:
            mirrormax.audit(model, batches(), samples=3, controls=0)
        assert torch.is_grad_enabled() is grad
    assert_same(before, snapshot(model))
    assert torch.backends.mha.get_fastpath_enabled() is fused


def test_hooks_of_the_user_stay():
    model, calls = text_model(), []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    mirrormax.audit(model, [words()], samples=2, controls=0)
    assert len(calls) == 1
    model(words())
    assert len(calls) == 2


def test_the_answer_does_not_depend_on_inference_mode_or_frozen_weights():
    model = text_model()
    plain = mirrormax.audit(model, [words()], samples=4)
    with torch.inference_mode():
        inside = mirrormax.audit(model, [words()], samples=4)
    model.requires_grad_(False)
    frozen = mirrormax.audit(model, [words()], samples=4)
    assert plain.heads == inside.heads == frozen.heads


def test_a_layer_that_does_more_than_its_names_say_is_refused(monkeypatch):
    model = hugging_face("bert")
    attention = model.bert.encoder.layer[1].attention.self
    modelling = sys.modules[type(attention).__module__]
    own = modelling.eager_attention_forward

    def sharper(module, query, *args, **kwargs):
        return own(module, query * (2 if module is attention else 1), *args, **kwargs)

    monkeypatch.setattr(modelling, "eager_attention_forward", sharper)
    with pytest.raises(ValueError, match=r"layer bert.encoder.layer.1.attention.self does not compute"):
        mirrormax.audit(model, [hugging_face_batch("bert")])


def test_agreement_is_asked_of_rows_that_look_somewhere():
    _, views = seen(encoder(), {"src": torch.randn(2, 4, 16)})
    views[0].check()


def test_an_adapter_of_ones_own_is_taken():
    class Renamed(type(adapter_for(text_model()))):
        pass

    adapter = Renamed(text_model())
    assert isinstance(adapter, Adapter)
    assert mirrormax.audit(adapter, [words()], samples=2, controls=0).config["model"] == "TransformerClassifier"


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Linear(2, 2), ValueError, "model is a Linear, which has no attention layer"),
        ("bert-base", TypeError, "model must be a torch module"),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ValueError, "adds keys of its own"),
        (nn.MultiheadAttention(4, 2, kdim=3), ValueError, "another size than its queries"),
    ],
    ids=["no attention", "a name", "bias_kv", "kdim"],
)
def test_models_that_cannot_be_read_are_refused(model, error, message):
    with pytest.raises(error, match=message):
        mirrormax.audit(model, [torch.randn(2, 3, 4)])


def test_masks_that_add_numbers_are_refused():
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(ValueError, match="adds numbers to the logits"):
        mirrormax.audit(model, [{"query": torch.randn(2, 3, 4), "attn_mask": torch.randn(3, 3)}])


def test_a_decoder_beside_its_encoder_is_refused():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    with pytest.raises(ValueError, match="audit an encoder or a decoder alone"):
        mirrormax.audit(model, [(torch.randn(2, 5, 8), torch.randn(2, 3, 8))])
