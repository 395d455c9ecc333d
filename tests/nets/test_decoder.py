"""The small Llama: the same numbers as Hugging Face's, causal, and generating from its own distribution."""

import pytest
import torch

import mirrormax as mm
from mirrormax.nets import Decoder, DecoderConfig, load_model, save_model

SIZES = DecoderConfig(vocab_size=40, context=16, dim=16, hidden=24, blocks=2, heads=2)


def model(**changes):
    torch.manual_seed(0)
    return Decoder(DecoderConfig(**{**vars(SIZES), **changes})).eval()


def ids(*shape):
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1))


def test_its_weights_in_hugging_face_s_llama_give_the_same_logits():
    transformers = pytest.importorskip("transformers")
    ours = model(theta=500.0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**ours.config.llama())).eval()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(ids(3, 12)), theirs(ids(3, 12)).logits, rtol=1e-5, atol=1e-6)


def test_no_token_sees_a_later_one():
    ours, first = model(), ids(1, 10)
    second = first.clone()
    second[0, 6:] = (second[0, 6:] + 1) % 40
    a, b = ours(first), ours(second)
    torch.testing.assert_close(a[:, :6], b[:, :6])
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_attention_maps_are_those_of_the_layers():
    ours, rows = model(), ids(2, 8)
    logits, maps = ours(rows, attention=True)
    assert maps.shape == (2, 2, 2, 8, 8)
    torch.testing.assert_close(logits, ours(rows))
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 2, 8))
    assert (maps.triu(1) == 0).all()
    block = ours.model.layers[0]
    x = block.input_layernorm(ours.model.embed_tokens(rows))
    values = block.self_attn.v_proj(x).unflatten(-1, (2, 8)).transpose(1, 2)
    mixed = (maps[0] @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(block.self_attn.o_proj(mixed), block.self_attn(x, *ours.rotations(8, x)))


def test_drawn_tokens_follow_the_model_and_its_context():
    ours = model()
    with torch.no_grad():
        ours.lm_head.weight.mul_(30)  # nearly certain
    made = ours.generate(ids(1), 25, generator=torch.Generator().manual_seed(0))
    assert made.shape == (26,)
    again = ours.generate(ids(1), 25, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made, again)
    seen = ours(made[None, -17:-1])[0, -1].softmax(-1)
    assert seen[made[-1]] > 0.01


def test_matrices_are_all_but_embeddings_gains_and_head():
    names = mm.param_groups(model(), scope="matrices")[0]["param_names"]
    assert len(names) == 2 * 7
    assert not any("embed" in name or "norm" in name or "lm_head" in name for name in names)


def test_it_is_saved_and_read_without_classes(tmp_path):
    ours = model()
    found = load_model(save_model(tmp_path / "m", ours, []))
    assert (found.kind, found.classes) == ("lm", ())
    torch.testing.assert_close(found.model(ids(1, 5)), ours(ids(1, 5)))
    with pytest.raises(ValueError, match="classes must be 0 names"):
        save_model(tmp_path / "n", ours, ["a"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"dim": 6}, "dim must be a multiple of twice the heads"), ({"context": 0}, "context must be at least 1")],
)
def test_sizes_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model(**changes)


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="ids have 17 tokens, more than context=16; cut them"):
        model()(ids(1, 17))
