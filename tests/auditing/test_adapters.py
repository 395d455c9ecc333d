"""Each adapter tells the truth about its models, and leaves them as they were."""

import copy
import sys

import pytest
import torch
from audited_models import SIZES, encoder, hugging_face, hugging_face_batch, image_model, text_model, words
from torch import nn

import mirrormax
from mirrormax.auditing import Adapter, adapter_for, watching
from mirrormax.auditing.changes import Change, effects

FAMILIES = ("bert", "distilbert", "roberta", "vit")


def seen(model, batch):
    with watching(adapter_for(model)) as watch:
        views = watch.run(batch)
    return watch.layers, views


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
    for view in seen(model, {"src": x, "src_key_padding_mask": mask})[1]:
        view.check()
        assert not view.mask[1, :, 3:].any()


def test_keys_and_values_may_be_made_of_other_tokens_than_queries():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    query, key, value = torch.randn(3, 4, 16), torch.randn(3, 6, 16), torch.randn(3, 6, 16)
    _, own = model(query, key, value, average_attn_weights=False)
    (layer,), (view,) = seen(model, (query, key, value))
    view.check()
    assert layer.form == "token"
    torch.testing.assert_close(view.attention(), own.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", ["token", "query"])
def test_the_linear_form_gives_the_logits_up_to_a_constant(form):
    with watching(adapter_for(encoder(), form)) as watch:
        view = watch.run(torch.randn(3, 5, 16))[1]
    layer, every = watch.layers[1], torch.arange(5).repeat(3)
    rows = view.rows(torch.arange(3).repeat_interleave(5), every)
    logits = view.logits().transpose(1, 2).flatten(0, 1)
    for head in range(layer.heads):
        W = layer.weights(head)
        assert W.shape == ((16, 17) if form == "token" else (8, 17))
        own = torch.einsum("nta,ae,ne->nt", rows.tokens(head).double(), W, rows.z[:, head])
        shift = logits[:, head] - own
        torch.testing.assert_close(shift, shift[..., :1].expand_as(shift), atol=1e-5, rtol=0)


def test_a_model_without_query_bias_has_a_square_form():
    (layer, *_), (view, *_) = seen(text_model(), words())
    assert layer.weights(0).shape == (16, 16)
    assert view.rows(torch.tensor([0]), torch.tensor([2])).z.shape == (1, 2, 16)


@pytest.mark.parametrize("make", ["own", "torch"])
@pytest.mark.parametrize("layer", [0, 1])
def test_heads_of_our_models_and_of_torchs_can_be_changed(make, layer):
    model, batch = (
        (text_model().double(), words()) if make == "own" else (encoder().double(), torch.randn(4, 6, 16).double())
    )
    adapter, (layers, _) = adapter_for(model), seen(model, batch)
    changes = [Change(((layer, 1),), layers[layer].weights(1)), Change(((layer, 1),))]
    _, (same, off) = effects(adapter, [batch], changes)
    assert abs(same.mean) < 1e-9 < abs(off.mean)

    def answers():
        with torch.no_grad():
            answer = adapter.call(batch)
        return torch.log_softmax(answer, -1) if make == "own" else answer.mean(1)

    before = answers()
    model.eval()
    before = answers()
    attention = model.blocks[layer].attention if make == "own" else model.layers[layer].self_attn
    output = attention.output if make == "own" else attention.out_proj
    with torch.no_grad():
        output.weight[:, 8:] = 0
    after = answers()
    if make == "own":
        chosen = before.argmax(-1, keepdim=True)
        rise = (before - after).gather(-1, chosen)
    else:
        rise = 1 - torch.nn.functional.cosine_similarity(after, before, dim=-1)
    assert off.mean == pytest.approx(float(rise.mean()), rel=1e-6)


class NanoAttention(nn.Module):
    """As nanoGPT writes it: one packed projection, fused or by hand; or by einsum, whose products are not seen."""

    def __init__(self, how):
        super().__init__()
        self.how, self.n_head, self.n_embd = how, 2, 16
        self.c_attn, self.c_proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.c_attn(x).split(16, -1))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if self.how == "fused":
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.how == "by hand":
            scores = (q @ k.transpose(-2, -1)) * 8**-0.5
            y = nn.functional.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1) @ v
        else:
            scores = torch.einsum("bhqk,bhtk->bhqt", q, k) * 8**-0.5
            y = torch.einsum("bhqt,bhtk->bhqk", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)
        return self.c_proj(y.transpose(1, 2).flatten(2))


def nano_model(how):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 16), NanoAttention(how), NanoAttention(how)).eval()


def einsum_way(module, given, call):
    """What the guide shows: queries, keys and values of a layer, from what it was called with."""
    parts = module.c_attn(given["x"]).split(module.n_embd, -1)
    query, key, value = (part.unflatten(-1, (module.n_head, -1)).transpose(1, 2) for part in parts)
    causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    call.take(given["x"], query, key, value, mask=causal[None, None])


@pytest.mark.parametrize("how", ["fused", "by hand", "einsum"])
def test_layers_of_ones_own_are_read_by_their_products_or_by_a_way(how):
    model, ids = nano_model(how), words()
    ways = {"NanoAttention": einsum_way} if how == "einsum" else None
    found = mirrormax.audit(adapter_for(model, ways=ways), [ids], query="last", samples=4, controls=0)
    again = mirrormax.audit(nano_model("by hand"), [ids], query="last", samples=4, controls=0)
    assert {head.form for head in found.heads} == {"token"}
    assert [head.mass for head in found.heads] == pytest.approx([head.mass for head in again.heads], rel=1e-5)
    _, views = seen(nano_model("by hand"), ids)
    q, k, _ = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in model[1].c_attn(model[0](ids)).split(16, -1))
    logits = (q @ k.mT * 8**-0.5).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(views[0].attention(), logits.softmax(-1).double(), atol=1e-5, rtol=0)


def test_a_layer_that_shows_nothing_is_refused_with_what_to_give():
    with pytest.raises(ValueError, match=r"NanoAttention.*adapter_for a way"):
        mirrormax.audit(nano_model("einsum"), [words()])


@pytest.mark.slow
def test_a_compiled_model_is_read_as_the_model_that_it_is():
    model = text_model()
    plain, compiled = (mirrormax.audit(one, [words()], samples=3, controls=0) for one in (model, torch.compile(model)))
    assert plain.heads == compiled.heads


def test_of_a_multimodal_model_given_text_the_language_part_is_read():
    import transformers

    text = transformers.LlamaConfig(**SIZES, num_key_value_heads=1)
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=12, patch_size=4
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=39)
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config)
    ids = words().clamp(max=38)
    found = mirrormax.audit(model, [{"input_ids": ids, "attention_mask": (ids != 0).long()}], samples=3, controls=0)
    assert [head.module for head in found.heads] == [f"model.language_model.layers.{k}.self_attn" for k in (0, 0, 1, 1)]
    assert found.config["query"] == "last"


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
    mirrormax.audit(model, [words()], samples=2, controls=0, intervention_texts=0)
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


@pytest.mark.parametrize("choice", [{"form": "query"}, {"head": lambda output: output}], ids=["form", "head"])
def test_what_an_adapter_says_of_its_model_is_not_said_again_otherwise(choice):
    adapter = adapter_for(encoder(), form="token")
    assert adapter_for(adapter, form="token") is adapter
    with pytest.raises(ValueError, match=f"{next(iter(choice))} goes to the adapter itself"):
        mirrormax.audit(adapter, [torch.randn(2, 5, 8)], **choice)
    with pytest.raises(ValueError, match="ways goes to the adapter itself"):
        adapter_for(adapter, ways={"Mine": None})


def test_masks_that_add_numbers_are_biases_of_position():
    torch.manual_seed(0)
    model, x, mask = nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(2, 3, 4), torch.randn(3, 3)
    _, own = model(x, x, x, attn_mask=mask, average_attn_weights=False)
    (layer,), (view,) = seen(model, {"query": x, "attn_mask": mask})
    view.check()
    assert layer.form == "query"
    torch.testing.assert_close(view.attention(), own.double(), atol=1e-5, rtol=0)


def test_a_decoder_beside_its_encoder_is_refused():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    with pytest.raises(ValueError, match="audit an encoder or a decoder alone"):
        mirrormax.audit(model, [(torch.randn(2, 5, 8), torch.randn(2, 3, 8))])


def test_batches_that_are_no_numbers_are_named_as_such():
    encoder = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with pytest.raises(ValueError, match="NaN or infinite outputs on these batches"):
        mirrormax.audit(encoder, [torch.full((2, 3, 8), torch.nan)])
