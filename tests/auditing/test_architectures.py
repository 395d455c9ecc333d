"""Every architecture of transformers that the audit reads: its attention recomputed, its heads in the query form."""

import sys

import pytest
import torch
import transformers
from audited_architectures import BERT, MAKES, batch_of, make

import mirrormax
from mirrormax.auditing import adapter_for, log_odds, scorer, watching
from mirrormax.auditing.changes import Change, effects


def views_of(model, batch, form=None):
    with watching(adapter_for(model, form)) as watch:
        views = watch.run(batch)
    return watch.layers, views


@pytest.mark.parametrize("name", MAKES)
def test_attention_is_the_models_own_and_the_query_form_gives_its_logits(name):
    model, batch = make(name), batch_of(name)
    layers, views = views_of(model, batch, "query")
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    reader.config._attn_implementation = "eager"
    with torch.no_grad():
        own = reader(**batch, output_attentions=True).attentions
    assert len(own) == len(layers)
    for layer, view, attention in zip(layers, views, own, strict=True):
        view.check()
        again = view.attention()[..., : attention.shape[-1]]
        rows = view.mask[..., : attention.shape[-1]].any(-1)[:, None].expand(again.shape[:3])
        torch.testing.assert_close(again[rows], attention.double()[rows], atol=2e-5, rtol=0)
        for head in range(layer.heads):
            sequence, query = torch.tensor([0, 1]), torch.tensor([3, 5])
            part = view.rows(sequence, query)
            logits = torch.einsum("nta,ae,ne->nt", part.tokens(head), layer.weights(head), part.z[:, head])
            expected = view.logits()[sequence, head, query]
            seen = part.mask
            torch.testing.assert_close(logits[seen], expected[seen], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["mpt", "falcon-alibi"])
@pytest.mark.parametrize("length", [1, 9])
def test_a_single_sequence_with_biases_of_position_is_read(name, length):
    model = make(name)
    batch = {key: part[:1, :length] for key, part in batch_of(name).items()}
    _, views = views_of(model, batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(**batch, output_attentions=True).attentions
    for view, attention in zip(views, own, strict=True):
        view.check()
        torch.testing.assert_close(view.attention(), attention.double(), atol=2e-5, rtol=0)


def test_longformer_is_read_within_its_window_and_refused_where_tokens_look_everywhere():
    torch.manual_seed(0)
    model = transformers.LongformerModel(transformers.LongformerConfig(**BERT, attention_window=4)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(3, 40, (2, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    _, views = views_of(model, batch)
    for view in views:
        view.check()  # that its outputs are those of the attention that is recomputed
        assert int(view.mask[0, 6].sum()) == 5
    everywhere = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="global_attention_mask"):
        views_of(model, {**batch, "global_attention_mask": everywhere})


def test_attention_in_blocks_is_refused_with_what_to_give():
    sizes = {**MAKES["big-bird"][1], "attention_type": "block_sparse"}
    model = transformers.BigBirdModel(transformers.BigBirdConfig(**sizes))
    with pytest.raises(ValueError, match="original_full"):
        mirrormax.audit(model, [batch_of("big-bird")], samples=2, controls=0)


def turned_back(monkeypatch, model):
    """Keys rotated the other way."""
    modelling = sys.modules[type(model.model.layers[0].self_attn).__module__]
    own = modelling.apply_rotary_pos_emb
    monkeypatch.setattr(
        modelling, "apply_rotary_pos_emb", lambda q, k, cos, sin, **_: (own(q, k, cos, -sin)[0], own(q, k, cos, sin)[1])
    )


def without_first(monkeypatch, model):
    """A mask that the layers are not told of."""
    altered(monkeypatch, model, lambda module, q, k, v, mask: (q, k, v, mask.index_fill(-1, torch.tensor([1]), -1e9)))


def other_keys(monkeypatch, model):
    altered(monkeypatch, model, lambda module, q, k, v, mask: (q, k * 1.5, v, mask))


def other_cap(monkeypatch, model):
    altered(monkeypatch, model, lambda module, q, k, v, mask: (q, k, v, mask), softcap=1.0)


def wrong_sizes(monkeypatch, model):
    altered(monkeypatch, model, lambda module, q, k, v, mask: (q[..., :-1], k, v, mask))


def altered(monkeypatch, model, change, **options):
    """The function behind the one that is watched computes something else in layer 1."""
    target = model.model.layers[1].self_attn
    modelling = sys.modules[type(target).__module__]
    own = modelling.eager_attention_forward

    def other(module, query, key, value, attention_mask, **kwargs):
        if module is target:
            query, key, value, attention_mask = change(module, query, key, value, attention_mask)
            kwargs |= options
        return own(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setattr(modelling, "eager_attention_forward", other)


@pytest.mark.parametrize(
    ("name", "alter", "message"),
    [
        ("llama", turned_back, "makes its queries of q_proj in a way that the audit does not know"),
        ("llama", without_first, "layer model.layers.1.self_attn does not compute the softmax attention"),
        ("qwen3", other_keys, "layer model.layers.1.self_attn does not compute the softmax attention"),
        ("gemma2", other_cap, "layer model.layers.1.self_attn does not compute the softmax attention"),
        ("llama", wrong_sizes, "layer model.layers.1.self_attn .* cannot compute its attention"),
    ],
)
def test_a_layer_that_computes_something_else_is_refused_by_name(monkeypatch, name, alter, message):
    model = make(name)
    alter(monkeypatch, model)
    with pytest.raises(ValueError, match=message):
        mirrormax.audit(model, [batch_of(name)], samples=2, controls=0)


@pytest.mark.parametrize("name", ["bloom", "gpt-oss"])
def test_changed_slopes_and_sinks_are_refused(name):
    model, batch = make(name), batch_of(name)
    _, views = views_of(model, batch)
    views[0].check()
    if name == "bloom":
        views[0].call.bias = views[0].call.bias * 2
    else:
        views[0].call.sinks = views[0].call.sinks + 1
    with pytest.raises(ValueError, match="does not compute the softmax attention"):
        views[0].check()


@pytest.mark.parametrize(
    "name", ["llama-bias", "gemma2", "gpt-oss", "qwen3", "bloom", "deberta-v2", "albert", "t5", "phi-norm"]
)
def test_an_audit_of_every_sort_of_head(name):
    found = mirrormax.audit(make(name), [batch_of(name)], samples=3, rivals=3, controls=1, form="query")
    assert {head.form for head in found.heads} == {"query"}
    assert all(0 < head.ratio <= 1 + 1e-5 for head in found.heads)
    assert any("query form" in note for note in found.notes)
    assert any("normalisers" in note for note in found.notes) == (name in ("qwen3", "phi-norm"))


def test_plain_encoders_keep_the_token_form_and_rotated_ones_have_none():
    bert = mirrormax.audit(make("bert"), [batch_of("bert")], samples=2, controls=0)
    assert {head.form for head in bert.heads} == {"token"}
    with pytest.raises(ValueError, match=r"layer model\.layers\.0\.self_attn has no token form"):
        mirrormax.audit(make("llama"), [batch_of("llama")], form="token")


def test_scores_of_grouped_heads_are_derivatives_of_the_next_tokens_log_odds():
    model, batch = make("llama").double(), batch_of("llama")
    adapter = adapter_for(model)
    with watching(adapter) as watch:
        views = watch.run(batch, scorer(adapter, None))
        rows = views[0].rows(torch.tensor([0]), torch.tensor([8]))
        chosen = adapter.logits(watch.output).argmax(-1)
        head, token, step = 2, 3, 3e-3  # its norms are in single precision
        value = views[0].call.value[0, head // 2, token]
        answers = []
        for sign in (1, -1):

            def edit(call, context, sign=sign):
                context = context.clone()
                context[0, 8, head] += sign * step * value
                return context

            watch.layers[0].edit = edit
            watch.run(batch)
            answers.append(float(log_odds(adapter.logits(watch.output), chosen)[0]))
        watch.layers[0].edit = None
    slope = (answers[0] - answers[1]) / (2 * step)
    assert float(rows.scores[0, head, token]) == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize("name", ["llama-bias", "qwen3", "gemma2", "gpt-oss", "bloom", "deberta-v2", "bert"])
def test_a_head_with_its_own_weights_changes_nothing_and_one_switched_off_does(name):
    model, batch = make(name), batch_of(name)
    model = model if name == "gpt-oss" else model.double()  # whose experts know no double
    adapter = adapter_for(model)
    layers, _ = views_of(model, batch)
    changes = [Change(((1, 1),), layers[1].weights(1)), Change(((1, 1),)), Change(((1, 1),), -layers[1].weights(1))]
    _, (same, off, other) = effects(adapter, [batch], changes)
    assert abs(same.mean) < 0.02 * min(abs(off.mean), abs(other.mean))


@pytest.mark.parametrize("layer", [0, 1])
def test_switching_a_head_off_is_what_a_model_without_its_output_loses(layer):
    model, batch = make("llama").double(), batch_of("llama")
    base, (off,) = effects(adapter_for(model), [batch], [Change(((layer, 1),))])

    def loss():
        with torch.no_grad():
            answer = torch.log_softmax(model(**batch).logits[:, :-1], -1)
        told = answer.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
        there = batch["attention_mask"][:, 1:].bool() if "attention_mask" in batch else torch.ones_like(told).bool()
        return float((-(told * there).sum(-1) / there.sum(-1)).mean())

    before = loss()
    weight, size = model.model.layers[layer].self_attn.o_proj.weight, model.config.head_dim
    with torch.no_grad():
        weight[:, size : 2 * size] = 0
    assert base.mean == pytest.approx(before, rel=1e-6)
    assert off.mean == pytest.approx(loss() - before, rel=1e-4)


def test_padding_on_the_left_moves_the_first_token():
    model = make("llama")
    ids = batch_of("llama")["input_ids"]
    left = torch.nn.functional.pad(ids, (2, 0))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (2, 0))
    plain, padded = (
        mirrormax.audit(model, [{"input_ids": words, "attention_mask": there}], samples=3, controls=0)
        for words, there in ((ids, torch.ones_like(ids)), (left, mask))
    )
    for one, other in zip(plain.heads, padded.heads, strict=True):
        assert (one.on_first, one.on_previous) == (other.on_first, other.on_previous)
        assert one.mass == pytest.approx(other.mass, rel=1e-4)


def test_the_sink_can_be_left_out():
    model, batch = make("llama"), batch_of("llama")
    whole, without = (mirrormax.audit(model, [batch], samples=3, controls=0, skip_sink=skip) for skip in (False, True))
    assert any(head.on_first > 0 for head in whole.heads)
    assert all(head.on_first == 0 for head in without.heads)
    assert any("first token of every sequence was left out" in note for note in without.notes)
