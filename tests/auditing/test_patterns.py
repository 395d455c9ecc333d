"""What a user asks of an audit: a table, a short repr, the pattern on a text, named heads changed."""

import pytest
import torch
import transformers
from audited_architectures import batch_of, make
from audited_models import encoder, text_model, words

import mirrormax
from mirrormax import ablate, attention_patterns
from mirrormax.auditing import OwnModel, Vocabulary, adapter_for, logit_attribution
from mirrormax.auditing.changes import Change, measured
from mirrormax.data import bert_tokenizer

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<a>", *(f"word{k}" for k in range(34)))


@pytest.fixture(scope="module")
def found():
    names = Vocabulary(lambda ids: [WORDS[k] for k in ids])
    return mirrormax.audit(text_model(), [words()], vocabulary=names, samples=3, controls=0, robustness=("int4",))


def test_an_audit_is_short_to_print_and_a_table_in_a_notebook(found):
    assert len(repr(found)) < 200
    assert "4 heads in 2 layers" in repr(found)
    frame = found.to_frame()
    assert list(frame.index) == ["0.0", "0.1", "1.0", "1.1"]
    assert frame.loc["1.0", "mass"] == found.head("1.0").mass
    assert frame["int4"].between(0, 1).all()
    assert found._repr_html_().count("<tr") == 1 + 1 + 4
    with pytest.raises(ValueError, match=r"9\.9"):
        found.head("9.9")


def test_favourites_are_the_tokens_and_pairs_that_the_maps_select(found):
    model, ids = text_model().eval(), words()
    with torch.no_grad():
        _, maps = model(ids, attention=True)
    chosen = ids.gather(1, maps[0, :, 1].argmax(-1))[ids != 0]
    counts = chosen.unique(return_counts=True)[1]
    favourite = next(one for one in found.favourites if (one.layer, one.head) == (0, 1))
    assert favourite.tokens[0][1] == int(counts.max())
    assert sum(count for _, _, count in favourite.pairs) <= len(chosen)


def test_a_pattern_is_the_models_own_map_with_tokens():
    model = text_model().eval()
    loaded = OwnModel(model, "words", ("a", "b"), bert_tokenizer(WORDS), 16, {}, ())
    every = attention_patterns(loaded, "<a> word3 word4")
    (one,) = attention_patterns(loaded, "<a> word3 word4", ["1.1"])
    ids = torch.tensor(loaded.encode(["<a> word3 word4"]))
    with torch.no_grad():
        _, maps = model(ids, attention=True)
    assert len(every) == 4
    assert one.tokens == loaded.names(ids[0].tolist())
    torch.testing.assert_close(torch.from_numpy(one.attention), maps[1, 0, 1].double(), atol=1e-5, rtol=0)
    assert "<a>" not in one._repr_html_()
    assert "1.1" in repr(one)
    with pytest.raises(ValueError, match="heads"):
        attention_patterns(loaded, "<a>", ["7.0"])


def test_named_heads_are_switched_off_or_given_their_mean():
    model, ids = text_model().double(), words()
    off, mean = ablate(model, ["0.1"], [ids])
    assert (off.layer, off.head, off.kind, mean.kind) == (0, 1, "off", "mean")
    assert off.mean != mean.mean
    captured = []
    output = model.blocks[0].attention.output
    handle = output.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    model.eval()
    with torch.no_grad():
        before = model(ids).log_softmax(-1)
    handle.remove()
    average = captured[0][ids != 0][:, 8:].mean(0)

    def averaged(_, args):
        x = args[0].clone()
        x[..., 8:] = average
        return (x,)

    handle = output.register_forward_pre_hook(averaged)
    with torch.no_grad():
        after = model(ids).log_softmax(-1)
    handle.remove()
    rise = (before - after).gather(-1, before.argmax(-1, keepdim=True)).mean()
    assert mean.mean == pytest.approx(float(rise), rel=1e-6)


def test_a_model_in_memory_shows_its_pattern_with_its_tokenizer():
    model = make("bert")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bert_tokenizer(WORDS), pad_token="[PAD]")
    (pattern,) = attention_patterns(model, "word3 word4", ["1.3"], tokenizer=tokenizer)
    ids = torch.tensor([tokenizer("word3 word4")["input_ids"]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(ids, output_attentions=True).attentions[1][0, 3]
    assert pattern.tokens == tokenizer.convert_ids_to_tokens(ids[0].tolist())
    torch.testing.assert_close(torch.from_numpy(pattern.attention), own.double(), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="tokenizer"):
        attention_patterns(model, "word3")


@pytest.mark.parametrize(("text", "heads", "named"), [(["<a>"], ["1.1"], "text"), ("<a>", "1.1", "heads")])
def test_a_pattern_is_of_one_text_and_a_list_of_heads(text, heads, named):
    loaded = OwnModel(text_model(), "words", (), bert_tokenizer(WORDS), 16, {}, ())
    with pytest.raises(TypeError, match=named):
        attention_patterns(loaded, text, heads)


@pytest.mark.parametrize(
    ("heads", "how"), [(["3"], ["off"]), (["0.9"], ["off"]), (["0.1"], ["half"]), ([0.1], ["off"]), (["0.1"], "off")]
)
def test_heads_and_changes_that_there_are_not_are_refused(heads, how):
    with pytest.raises((ValueError, TypeError), match=r"^(heads|how) "):
        ablate(text_model(), heads, [words()], how=how)


def test_no_batches_are_refused():
    with pytest.raises(ValueError, match="batches is empty"):
        ablate(text_model(), ["0.1"], [])
    with pytest.raises(ValueError, match="batches is empty"):
        logit_attribution(make("llama"), [])


def test_importance_is_what_heads_outputs_and_their_gradients_give_token_by_token():
    model, batch = make("llama").double().eval(), batch_of("llama")
    found = mirrormax.audit(model, [batch], samples=2, rivals=2, controls=0, shuffled=0, intervention_texts=2)
    some = {name: part[:2] for name, part in batch.items()}
    seen = []
    outputs = [block.self_attn.o_proj for block in model.model.layers]
    hooks = [one.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for one in outputs]
    logits = model(**some, use_cache=False).logits.log_softmax(-1)
    there = some["attention_mask"][:, 1:]
    told = logits[:, :-1].gather(-1, some["input_ids"][:, 1:, None])[..., 0]
    loss = -(told * there).sum(1) / there.sum(1)
    gradients = torch.autograd.grad(loss.sum(), seen)
    for hook in hooks:
        hook.remove()
    heads = found.config["layers"], len(found.heads) // found.config["layers"]
    products = [(x * g).unflatten(-1, (heads[1], -1)) for x, g in zip(seen, gradients, strict=True)]
    effects = [one.sum(-1).abs().sum(1).mean(0) for one in products]
    own = torch.tensor([head.importance for head in found.heads], dtype=torch.float64).reshape(heads)
    torch.testing.assert_close(own, torch.stack(effects).detach(), rtol=1e-4, atol=1e-7)


def test_removing_heads_in_an_order_is_switching_all_of_them_off():
    model, ids = text_model().double(), words()
    found = mirrormax.audit(model, [ids], samples=2, rivals=2, controls=0, shuffled=0, removal=True, heads=("1.0",))
    assert {one.order for one in found.removal} == {"taylor", "sink", "random"}
    half = next(one for one in found.removal if (one.order, one.heads) == ("taylor", 2))
    least = sorted(found.heads, key=lambda head: head.importance)[:2]
    few = ids[: half.texts]
    _, (rise,) = measured(adapter_for(model), [few], [Change(tuple((head.layer, head.head) for head in least))], print)
    assert half.mean == pytest.approx(float(rise.mean()))
    assert {(one.layer, one.head, one.kind) for one in found.effects} == {(1, 0, "off"), (1, 0, "mean")}


def test_a_model_without_a_head_has_no_importance():
    found = mirrormax.audit(encoder(), [torch.randn(3, 4, 16)], samples=2, controls=0, shuffled=0)
    assert {head.importance for head in found.heads} == {None}
    assert not found.removal


@pytest.mark.parametrize("name", ["llama-bias", "gpt2"])
def test_what_heads_add_to_logits_is_all_that_embeddings_and_biases_do_not(name):
    """With perceptrons that add nothing, heads and embeddings add up to the logit of the next token."""
    model, batch = make(name).double().eval(), batch_of(name)
    blocks = model.model.layers if name == "llama-bias" else model.transformer.h
    behind = [block.mlp.down_proj if name == "llama-bias" else block.mlp.c_proj for block in blocks]
    attention = [block.self_attn.o_proj if name == "llama-bias" else block.attn.c_proj for block in blocks]
    for layer in (*behind, *attention):
        if layer.bias is not None:
            torch.nn.init.zeros_(layer.bias)
    for layer in behind:
        torch.nn.init.zeros_(layer.weight)
    found = logit_attribution(model, [batch])
    ids, there = batch["input_ids"], batch["attention_mask"][:, 1:].double()

    def told(streams):
        logits = model.lm_head(streams)
        centred = (logits - logits.mean(-1, keepdim=True))[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        return ((centred * there).sum(1) / there.sum(1)).mean()

    norm = model.model.norm if name == "llama-bias" else model.transformer.ln_f
    kept = []
    handle = norm.register_forward_hook(lambda _, args, out: kept.append((args[0], out)))
    first = blocks[0].register_forward_pre_hook(lambda _, args, kwargs: kept.append(args or kwargs), with_kwargs=True)
    with torch.no_grad():
        model(**batch, use_cache=False)
    handle.remove()
    first.remove()
    start = kept[0][0] if isinstance(kept[0], tuple) else kept[0]["hidden_states"]
    end, answer = kept[1]
    centred = isinstance(norm, torch.nn.LayerNorm)
    part = [x - x.mean(-1, keepdim=True) if centred else x for x in (start, end)]
    bias = norm.bias if centred else torch.zeros(())
    ratio = (answer - bias) / part[1]  # of the norm, kept
    with torch.no_grad():
        without = told(part[0] * ratio + bias)
        whole = told(answer)
    assert sum(one.mean for one in found) == pytest.approx(float(whole - without), rel=1e-6)


def test_logits_are_attributed_where_blocks_add_what_heads_give():
    with pytest.raises(ValueError, match="between heads and stream"):
        logit_attribution(make("gemma2"), [batch_of("gemma2")])
    with pytest.raises(ValueError, match="language model"):
        logit_attribution(make("bert"), [batch_of("bert")])
