"""prune(by="margin"): the gradients of margins, against differences of margins taken from the attention maps."""

import copy

import pytest
import torch
from torch import nn

from mirrormax import prune
from mirrormax.nets import Decoder, DecoderConfig, TransformerClassifier, TransformerConfig
from mirrormax.pruning import margin_scores, scores

IDS = torch.tensor([[3, 5, 1, 7, 2, 4], [6, 2, 5, 1, 0, 0]])  # 0 is padding


class Reader(nn.Module):
    """torch's own encoder, with a mask of padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.blocks(self.embed(ids), src_key_padding_mask=ids == 0)

    def maps(self, ids):
        x, hidden, found = self.embed(ids), ids == 0, []
        for block in self.blocks.layers:
            _, one = block.self_attn(x, x, x, key_padding_mask=hidden, average_attn_weights=False)
            found.append(one)
            x = block(x, src_key_padding_mask=hidden)
        return found


def of_torch():
    return Reader(), lambda model: model.maps(IDS), (IDS != 0)[:, None].expand(-1, 2, -1)


def classifier():
    model = TransformerClassifier(TransformerConfig(11, max_length=8, dim=8, hidden=16, blocks=2, heads=2))

    def maps(model):
        first, last = model(IDS, attention=True)[1]
        return [first, last[:, :, :1]]  # of the last block only the first token asks

    return model, maps, (IDS != 0)[:, None].expand(-1, 2, -1)


def decoder():
    model = Decoder(DecoderConfig(11, context=8, dim=8, hidden=16, blocks=2, heads=2))
    return model, lambda model: list(model(IDS, attention=True)[1]), torch.ones(2, 2, 6, dtype=torch.bool)


def mean_margin(maps, asks):
    """M: the mean over layers of log p of the selected token, over the queries that ask and have a rival."""
    found = []
    for one in maps:
        used = asks[:, :, : one.shape[2]] & ((one > 0).sum(-1) > 1)
        found.append(one[used].amax(-1).log().mean())
    return torch.stack(found).mean()


@pytest.mark.parametrize("make", [of_torch, classifier, decoder])
def test_scores_are_weights_times_differences_of_margins(make):
    torch.manual_seed(0)
    model, maps, asks = make()
    model = model.double().eval()
    for param in model.parameters():
        param.data.copy_(0.5 * torch.randn_like(param))
    before = copy.deepcopy(model.state_dict())
    scores = margin_scores(model.train(), [IDS])
    assert model.training
    assert all(param.grad is None for param in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()
    generator = torch.Generator().manual_seed(1)
    assert len(scores) >= 4
    for name, score in scores.items():
        param = model.get_parameter(name)
        for k in torch.randperm(param.numel(), generator=generator)[:4].tolist():
            values = []
            with torch.no_grad():
                for step in (1e-6, -2e-6):
                    param.view(-1)[k] += step
                    values.append(mean_margin(maps(model), asks))
                param.view(-1)[k] += 1e-6
            slope = (values[0] - values[1]) / 2e-6
            expected = float(param.detach().view(-1)[k].abs() * slope.abs())
            assert float(score.view(-1)[k]) == pytest.approx(expected, rel=2e-3, abs=1e-7), name


def test_several_batches_count_by_their_mean_square():
    torch.manual_seed(0)
    model, _, _ = decoder()
    first, second = (margin_scores(model, [row[None]]) for row in IDS)
    both = margin_scores(model, [row[None] for row in IDS])
    for name, score in both.items():
        torch.testing.assert_close(score, ((first[name] ** 2 + second[name] ** 2) / 2).sqrt())


def test_every_matrix_loses_as_much_as_by_magnitude_and_the_least_by_score():
    torch.manual_seed(0)
    model, _, _ = decoder()
    scores = margin_scores(model, [IDS])
    by_size, by_margin = copy.deepcopy(model), copy.deepcopy(model)
    one, other = prune(by_size, 0.6, scope="global"), prune(by_margin, 0.6, by="margin", batches=[IDS])
    assert one.tensors == other.tensors
    unmoved = set(one.tensors) - set(scores)
    last = ("self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert unmoved == {f"model.layers.1.{name}.weight" for name in last}
    for name in one.tensors:
        path, _, own = name.rpartition(".")
        plain, cut = (getattr(m.get_submodule(path), own) == 0 for m in (by_size, by_margin))
        if name in unmoved:
            assert torch.equal(plain, cut)
        else:
            assert not torch.equal(plain, cut)
            assert float(scores[name][cut].max()) <= float(scores[name][~cut].min())
    other.undo()
    for name, param in by_margin.named_parameters():
        assert torch.equal(param, model.get_parameter(name))


def test_scores_taken_once_serve_for_every_share():
    torch.manual_seed(0)
    model, _, _ = decoder()
    for structured in (None, "head"):
        taken = scores(model, "margin", structured, batches=[IDS])
        for share in (0.3, 0.8):
            once, anew = copy.deepcopy(model), copy.deepcopy(model)
            prune(once, share, taken, structured=structured)
            prune(anew, share, by="margin", structured=structured, batches=[IDS])
            for name, value in once.state_dict().items():
                assert torch.equal(value, anew.state_dict()[name])
    with pytest.raises(ValueError, match="structured"):
        prune(model, 0.5, taken)


def test_heads_and_rows_that_bring_least_go_first():
    torch.manual_seed(0)
    model, _, _ = decoder()
    with torch.no_grad():  # the second head of the first layer asks for nothing: no rival, no margin, whatever its size
        model.model.layers[0].self_attn.q_proj.weight[4:] *= 1e-6
        model.model.layers[0].self_attn.k_proj.weight[4:] *= 10
    cut = prune(model, 0.25, by="margin", structured="head", batches=[IDS])
    attention = model.model.layers[0].self_attn
    assert not attention.k_proj.weight[4:].any()
    assert attention.k_proj.weight[:4].all()
    cut.undo()
    every = {"scope": "global", "params": ["*.k_proj.weight"], "batches": [IDS]}
    rows = prune(model, 0.5, by="margin", structured="row", **every)
    assert rows.share == pytest.approx(0.5)
    assert not attention.k_proj.weight[4:].any()


def test_what_was_pruned_stays_so_and_goes_first():
    torch.manual_seed(0)
    model, _, _ = decoder()
    first = prune(model, 0.5)
    zero = {name: weight(model, name) == 0 for name in first.tensors}
    again = prune(model, 0.8, by="margin", batches=[IDS])
    assert again.share == pytest.approx(0.8, abs=0.01)
    assert all(not weight(model, name)[mask].any() for name, mask in zero.items())


def weight(model, name):
    path, _, own = name.rpartition(".")
    return getattr(model.get_submodule(path), own)


def test_frozen_weights_are_scored_and_stay_frozen():
    torch.manual_seed(0)
    model, _, _ = decoder()
    expected = margin_scores(model, [IDS])
    model.requires_grad_(False)
    found = margin_scores(model, [IDS])
    assert all(torch.equal(found[name], score) for name, score in expected.items())
    assert not any(param.requires_grad for param in model.parameters())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_models_of_hugging_face_give_the_margins_of_their_own_maps(attention):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for param in model.parameters():
        param.data.normal_(0, 0.3)
    mask = (IDS != 0).long()
    scores = margin_scores(model, [{"input_ids": IDS, "attention_mask": mask, "labels": IDS}])
    model.set_attn_implementation("eager")
    maps = model(input_ids=IDS, attention_mask=mask, output_attentions=True).attentions
    asks = mask.bool()[:, None].expand(-1, 4, -1)
    names = list(scores)
    margin = torch.stack([one[asks & ((one > 0).sum(-1) > 1)].amax(-1).log().mean() for one in maps]).mean()
    gradients = torch.autograd.grad(margin, [model.get_parameter(name) for name in names])
    for name, gradient in zip(names, gradients, strict=True):
        expected = (model.get_parameter(name) * gradient).abs().detach()
        torch.testing.assert_close(scores[name], expected, rtol=1e-3, atol=1e-6)


def test_what_has_no_margins_is_refused():
    model, _, _ = decoder()
    with pytest.raises(ValueError, match="batch"):
        prune(model, 0.5, by="margin", batches=[])
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="no attention was seen while Sequential ran"):
        prune(plain, 0.5, by="margin", batches=[torch.randn(3, 4)])
    assert not list(model.buffers())
    assert not list(plain.buffers())


class Open(Reader):
    """A model that takes whatever it is given by name, as Hugging Face's do."""

    def forward(self, **batch):
        return super().forward(batch["ids"])


def test_a_mapping_goes_in_by_name_where_any_name_is_taken():
    torch.manual_seed(0)
    model, plain = Open(), Reader()
    plain.load_state_dict(model.state_dict())
    by_name = prune(model, 0.5, by="margin", batches=[{"ids": IDS}])
    assert by_name.share == prune(plain, 0.5, by="margin", batches=[IDS]).share
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
