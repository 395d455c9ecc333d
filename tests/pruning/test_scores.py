"""Wanda and Taylor scores, against plain computations: inputs written down by hand, gradients by autograd."""

import copy

import pytest
import torch
from audited_models import hugging_face
from torch import nn

from mirrormax import prune
from mirrormax.nets import Decoder, DecoderConfig, TransformerClassifier, TransformerConfig
from mirrormax.pruning import scores

IDS = torch.tensor([[3, 5, 1, 7, 2, 4], [6, 2, 5, 1, 0, 0]])  # 0 is padding


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def inputs(count=2):
    return [torch.randn(5, 6, generator=torch.Generator().manual_seed(k)) for k in range(count)]


def decoder():
    torch.manual_seed(0)
    return Decoder(DecoderConfig(11, context=8, dim=8, hidden=16, blocks=2, heads=2))


def test_wanda_is_the_weight_times_the_norm_of_its_input():
    model, batches = mlp(), inputs()
    found = scores(model, "wanda", batches=batches).values
    x = torch.cat(batches)
    hidden = model[0](x).relu().detach()
    for name, given in (("0.weight", x), ("2.weight", hidden)):
        weight = model.get_parameter(name).detach()
        expected = [[abs(w) * given[:, j].norm() for j, w in enumerate(row)] for row in weight]
        torch.testing.assert_close(found[name], torch.tensor(expected))


def test_wanda_compares_within_rows_by_default():
    model = mlp()
    found = scores(model, "wanda", batches=inputs()).values
    prune(model, 0.5, "wanda", batches=inputs())
    for name, score in found.items():
        kept = model.get_submodule(name[0]).weight != 0
        assert torch.equal(kept, score > score.sort(1).values[:, score.shape[1] // 2 - 1, None])


def caught_linear_inputs(model, call):
    """What every nn.Linear was given, taken by replacing it."""
    caught = {}
    for path, module in model.named_modules():
        if type(module) is nn.Linear:
            module.register_forward_pre_hook(lambda _, args, path=path: caught.setdefault(path, args[0].detach()))
    call()
    return caught


def test_padding_is_no_input():
    model = hugging_face("bert")
    mask = (IDS != 0).long()
    found = scores(model, "wanda", batches=[{"input_ids": IDS, "attention_mask": mask}]).values
    twin = copy.deepcopy(model).eval()
    caught = caught_linear_inputs(twin, lambda: twin(input_ids=IDS, attention_mask=mask))
    name = next(name for name in found if name.endswith("attention.self.key.weight"))
    given = caught[name.removesuffix(".weight")][mask.bool()]
    expected = model.get_parameter(name).detach().abs() * given.norm(dim=0)
    torch.testing.assert_close(found[name], expected)


def test_projections_that_are_not_called_are_scored_by_the_modules_input():
    """Our classifier's last block takes its first token's products from the other side."""
    torch.manual_seed(0)
    model = TransformerClassifier(TransformerConfig(11, max_length=8, dim=8, hidden=16, blocks=1, heads=2)).eval()
    given = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: given.append(args[0].detach()))
    found = scores(model, "wanda", batches=[IDS]).values
    x = given[0][IDS != 0]
    for part in ("key", "value"):
        name = next(name for name in found if name.endswith(f"{part}.weight"))
        torch.testing.assert_close(found[name], model.get_parameter(name).detach().abs() * x.norm(dim=0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_attention_is_seen_through(batch_first):
    torch.manual_seed(0)

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    model, x = Attends().eval(), torch.randn(3, 5, 8)
    expected_out = model(x)
    found = scores(model, "wanda", params=["*weight"], batches=[x]).values
    torch.testing.assert_close(model(x), expected_out)
    own = model.attention
    rows = (x if batch_first else x.transpose(0, 1)).detach()
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (rows @ own.in_proj_weight.T).chunk(3, -1))
    mixed = ((q @ k.transpose(-1, -2) / 2).softmax(-1) @ v).transpose(1, 2).flatten(2).detach()
    norm = rows.flatten(0, 1).norm(dim=0)
    torch.testing.assert_close(found["attention.in_proj_weight"], own.in_proj_weight.detach().abs() * norm)
    expected = own.out_proj.weight.detach().abs() * mixed.flatten(0, 1).norm(dim=0)
    torch.testing.assert_close(found["attention.out_proj.weight"], expected)


def test_filters_and_transposed_layers_are_read_as_outputs_by_inputs():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    conv, turned = nn.Conv2d(2, 3, 2, stride=2), Conv1D(5, 3)
    model = nn.Sequential(conv, nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), turned)
    x = torch.randn(2, 2, 4, 4)
    found = scores(model, "wanda", params=["0.weight", "4.weight"], batches=[x]).values
    patches = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(-1, 8)
    torch.testing.assert_close(found["0.weight"], conv.weight.detach().flatten(1).abs() * patches.norm(dim=0))
    given = model[:4](x).detach()
    torch.testing.assert_close(found["4.weight"], turned.weight.detach().T.abs() * given.norm(dim=0))
    prune(model, 0.5, structured="row", params=["4.weight"])
    assert int((turned.weight == 0).all(0).sum()) == 2


def next_token_loss(model, ids):
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def slope_at(model, output, token, columns, ids):
    """The derivative of the loss when what an output layer is given at one token is scaled by 1 − t."""
    values = []
    for t in (1e-5, -1e-5):

        def scaled(_, args, t=t):
            x = args[0].clone()
            x[:, token, columns] *= 1 - t
            return (x,)

        handle = output.register_forward_pre_hook(scaled)
        with torch.no_grad():
            values.append(float(next_token_loss(model, ids)))
        handle.remove()
    return (values[0] - values[1]) / 2e-5


def test_taylor_is_the_change_of_the_loss_when_a_unit_is_removed_to_first_order():
    """Against differences: the derivative of the loss when a unit is scaled by 1 − t."""
    model, ids = decoder().double(), IDS[:1]
    options = {"batches": [ids], "loss": lambda out, batch: nn.functional.cross_entropy(out[0, :-1], batch[0, 1:])}
    heads = scores(model, "taylor", "head", **options).values
    rows = scores(model, "taylor", "row", **options).values
    entries = scores(model, "taylor", **options).values

    def slope(weight, where):
        values = []
        kept = weight.detach().clone()
        for t in (1e-5, -1e-5):
            with torch.no_grad():
                weight[where] = kept[where] * (1 - t)
                values.append(float(next_token_loss(model, ids)))
                weight.copy_(kept)
        return abs(values[0] - values[1]) / 2e-5

    for path, found in heads.items():  # token by token: a head's output scaled there alone
        output = model.get_submodule(f"{path}.o_proj")
        for head in range(2):
            slopes = [
                slope_at(model, output, token, slice(4 * head, 4 * head + 4), ids) for token in range(ids.shape[1])
            ]
            assert float(found[head]) == pytest.approx(sum(map(abs, slopes)), rel=1e-4, abs=1e-8)
    name = "model.layers.0.mlp.up_proj.weight"
    weight = model.get_parameter(name)
    assert float(rows[name][3]) == pytest.approx(slope(weight, (3,)), rel=1e-4, abs=1e-8)
    assert float(entries[name][2, 5]) == pytest.approx(slope(weight, (2, 5)), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("batch_first", [True, False])
def test_heads_of_torchs_own_attention_are_scored_token_by_token(batch_first):
    """By the heads' outputs, computed by hand: Σ over texts and tokens of |⟨o, ∂L/∂o⟩|."""
    torch.manual_seed(0)

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=batch_first)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    model, x, wanted = Attends().double().eval(), torch.randn(3, 5, 8).double(), torch.randn(3, 5, 8).double()
    options = {"batches": [x], "loss": lambda out, _: (out * wanted).sum()}
    found = scores(model, "taylor", "head", params=["*weight"], **options).values["attention"]
    rows = x if batch_first else x.transpose(0, 1)
    own = model.attention
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (rows @ own.in_proj_weight.T).chunk(3, -1))
    mixed = ((q @ k.transpose(-1, -2) / 2).softmax(-1) @ v).transpose(1, 2)
    slope = ((wanted if batch_first else wanted.transpose(0, 1)) @ own.out_proj.weight).unflatten(-1, (2, 4))
    torch.testing.assert_close(found, (mixed * slope).sum(-1).abs().sum((0, 1)).detach())


def test_the_tokens_of_every_call_of_a_shared_layer_count():
    """As in models that apply one block several times."""
    once, ids = decoder().double(), IDS[:1]
    options = {"batches": [ids], "loss": lambda out, batch: nn.functional.cross_entropy(out[0, :-1], batch[0, 1:])}

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = copy.deepcopy(once)

        def forward(self, ids):
            return torch.cat([self.decoder(ids), self.decoder(ids)])

    def both(out, batch):
        return sum(options["loss"](part[None], batch) for part in out)

    expected = scores(once, "taylor", "head", **options).values
    found = scores(Twice(), "taylor", "head", batches=[ids], loss=both).values
    for path, score in expected.items():
        torch.testing.assert_close(found[f"decoder.{path}"], 2 * score)


def test_taylor_takes_the_mean_of_sizes_over_batches():
    model = decoder()

    def loss(out, batch):
        return nn.functional.cross_entropy(out[0, :-1], batch[0, 1:])

    each = [scores(model, "taylor", "row", batches=[row[None]], loss=loss).values for row in IDS]
    both = scores(model, "taylor", "row", batches=[row[None] for row in IDS], loss=loss).values
    for name, found in both.items():
        torch.testing.assert_close(found, (each[0][name] + each[1][name]) / 2)


@pytest.mark.parametrize("labels", [True, False])
def test_the_loss_of_hugging_face_models_is_their_own(labels):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    mask = (IDS != 0).long()
    batch = {"input_ids": IDS, "attention_mask": mask}
    if labels:
        model = hugging_face("bert").eval()
        batch["labels"] = torch.tensor([0, 1])
        own = model(**batch).loss
    else:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=11, **size)).eval()
        own = model(**batch, labels=IDS.masked_fill(mask == 0, -100)).loss
    found = scores(model, "taylor", batches=[batch]).values
    gradients = torch.autograd.grad(own, [model.get_parameter(name) for name in found], allow_unused=True)
    for (name, score), gradient in zip(found.items(), gradients, strict=True):
        expected = 0 * score if gradient is None else (model.get_parameter(name) * gradient).abs().detach()
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-7)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="loss"):
        prune(mlp(), 0.5, "taylor", batches=inputs())
    unused = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    unused.forward = unused["a"].forward
    with pytest.raises(ValueError, match=r"[ab]\.weight"):
        prune(unused, 0.5, "wanda", batches=[torch.randn(2, 4)])
    assert not list(unused.buffers())


@pytest.mark.parametrize("structured", [None, "row", "1:2"])
def test_scores_of_other_weights_are_refused(structured):
    model, of_one = mlp(), {"params": ["2.weight"]}
    of_another = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))
    for found, options in (
        (scores(model, "magnitude", structured), of_one),
        (scores(model, "magnitude", structured, **of_one), {}),
        (scores(of_another, "magnitude", structured), {}),
    ):
        with pytest.raises(ValueError, match=r"^by holds scores .*score this model"):
            prune(model, 0.5, found, structured=structured, **options)
    assert not list(model.buffers())


@pytest.mark.parametrize("by", ["wanda", "sparsegpt", "taylor"])
@pytest.mark.parametrize(
    "batches", [torch.zeros(2, 6), {"input": torch.zeros(2, 6)}, "text", 3, [], [torch.full((2, 6), torch.nan)]]
)
def test_batches_that_say_nothing_are_refused_and_nothing_is_pruned(by, batches):
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=r"batch|0\.weight"):
        prune(model, 0.5, by, batches=batches, loss=lambda output, batch: output.mean())
    assert not list(model.buffers())


@pytest.mark.parametrize(
    "loss", ["mean", 0, torch.ones(2), lambda *_: 1.0, lambda out, _: out, lambda *_: torch.ones(())]
)
def test_a_loss_that_is_no_number_of_the_output_is_refused(loss):
    with pytest.raises((TypeError, ValueError), match=r"^loss must"):
        prune(mlp(), 0.5, "taylor", batches=inputs(), loss=loss)


def test_berts_heads_take_their_columns_of_the_output_layer_with_them():
    model = hugging_face("bert").eval()
    prune(model, 0.5, "taylor", structured="head", batches=[{"input_ids": IDS, "labels": torch.tensor([0, 1])}])
    for layer in model.base_model.encoder.layer:
        gone = (layer.attention.self.value.weight == 0).all(1)
        assert torch.equal(gone, (layer.attention.output.dense.weight == 0).all(0))
