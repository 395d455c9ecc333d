"""prune: what is pruned in which scope, that it stays so while training, and that it can be put back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mirrormax import MirrorAdamW, prune


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)).mean(1))


class Separate(nn.Module):
    """Attention of two heads with layers of their own, as other libraries write it."""

    num_heads = 2

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def reader():
    torch.manual_seed(0)
    model = Reader()
    for param in model.blocks.layers[1].parameters():  # torch makes it a copy of the first
        nn.init.normal_(param, std=0.2)
    return model


IDS = torch.randint(0, 11, (32, 5), generator=torch.Generator().manual_seed(1))


def matrices(model):
    return {n: p.detach() for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks")}


@pytest.mark.parametrize("scope", ["global", "matrix", "row"])
def test_the_smallest_entries_of_each_scope_are_pruned_and_nothing_else(scope):
    model, before = reader(), reader()
    pruned = prune(model, 0.5, scope=scope)
    old = matrices(before)
    assert sorted(pruned.tensors) == sorted(old)
    everything = torch.cat([w.abs().flatten() for w in old.values()]).median()
    for name, w in old.items():
        size = w.abs()
        threshold = {"global": everything, "matrix": size.median(), "row": size.median(1, keepdim=True).values}[scope]
        torch.testing.assert_close(weight(model, name), torch.where(size > threshold, w, 0.0))
    assert pruned.share == pytest.approx(0.5, abs=1e-3)
    assert torch.equal(model.embed.weight, before.embed.weight)
    assert torch.equal(model.head.weight, before.head.weight)


def test_without_data_weights_are_compared_within_each_matrix():
    one, other = reader(), reader()
    prune(one, 0.7), prune(other, 0.7, "magnitude", "matrix")
    for name in matrices(reader()):
        assert torch.equal(weight(one, name), weight(other, name))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=6, max_size=6), min_size=1, max_size=4),
    st.floats(0, 0.99),
)
def test_the_share_is_met_to_one_weight_whatever_is_equal(rows, share):
    layer = nn.Linear(6, len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    model = nn.Sequential(layer)
    for scope, size in (("global", 6 * len(rows)), ("row", 6)):
        pruned = prune(model, share, scope=scope)
        count = int(share * size + 1e-9)
        assert pruned.tensors["0.weight"][0] == count * (6 * len(rows) // size)
        mask = layer.weight_mask.view(-1, size).bool()
        sizes = layer.weight_orig.detach().abs().view(-1, size)
        if count > 0:
            assert bool((sizes.masked_fill(mask, -1).amax(1) <= sizes.masked_fill(~mask, 9).amin(1)).all())
        pruned.undo()


def test_two_of_four_keeps_the_two_largest_of_every_four_neighbours():
    model, before = reader(), reader()
    pruned = prune(model, 0.5, structured="2:4")
    assert pruned.share == 0.5
    for name, w in matrices(before).items():
        ranks = w.abs().unflatten(1, (-1, 4)).argsort(-1).argsort(-1)
        torch.testing.assert_close(weight(model, name), w.unflatten(1, (-1, 4)).where(ranks > 1, 0.0).flatten(1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(value):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[1, 2] = value
    with pytest.raises(ValueError, match=r"1\.weight"):
        prune(model, 0.5)
    assert not list(model.buffers())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_model_computes_with_the_pruned_weights(mode):
    model, by_hand = reader(), reader()
    prune(model, 0.8)
    with torch.no_grad():
        for name, param in by_hand.named_parameters():
            path, _, own = name.rpartition(".")
            param.copy_(getattr(model.get_submodule(path), own))
    getattr(model, mode)(), getattr(by_hand, mode)()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), by_hand(IDS), rtol=1e-5, atol=1e-6)


def test_what_is_pruned_stays_so_while_training_goes_on():
    model = reader()
    optimizer = MirrorAdamW(model, lr=1e-2, p=1.5)
    pruned = prune(model, 0.7)
    zero = {name: weight(model, name) == 0 for name in pruned.tensors}
    before = {name: weight(model, name).detach().clone() for name in pruned.tensors}
    for _ in range(3):
        optimizer.zero_grad()
        model(IDS).logsumexp(-1).sum().backward()
        optimizer.step()
    model(IDS)
    for name, mask in zero.items():
        assert not weight(model, name)[mask].any()
        assert not torch.equal(weight(model, name), before[name]), name


def weight(model, name):
    path, _, own = name.rpartition(".")
    return getattr(model.get_submodule(path), own)


def test_undo_puts_everything_back():
    model, before = reader(), reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruned = prune(model, 0.9)
    pruned.undo()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in before.named_parameters()}
    assert not list(model.buffers())
    for name, param in model.named_parameters():
        assert torch.equal(param, before.get_parameter(name))
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    torch.testing.assert_close(model(IDS), before(IDS))
    with pytest.raises(ValueError, match="has no mask any more"):
        pruned.undo()


def test_finish_leaves_plain_weights_with_zeros():
    model = reader()
    pruned = prune(model, 0.9)
    expected = model(IDS)
    pruned.finish()
    assert set(model.state_dict()) == set(reader().state_dict())
    torch.testing.assert_close(model(IDS), expected)
    assert float((model.blocks.layers[0].linear1.weight == 0).float().mean()) > 0.5


def test_pruning_more_later_counts_what_was_pruned():
    once, twice = reader(), reader()
    prune(once, 0.8, scope="global")
    prune(twice, 0.5, scope="global")
    pruned = prune(twice, 0.8, scope="global")
    assert pruned.share == pytest.approx(0.8, abs=1e-3)
    for name in pruned.tensors:
        assert torch.equal(weight(once, name) == 0, weight(twice, name) == 0)
    pruned.undo()
    for name, param in twice.named_parameters():
        assert torch.equal(param, reader().get_parameter(name))


def test_rows_are_pruned_by_their_mean_square():
    model, before = reader(), reader()
    pruned = prune(model, 0.25, scope="global", params=["*linear1.weight"], structured="row")
    assert len(pruned.tensors) == 2
    rows = torch.cat([weight(before, name).detach() for name in pruned.tensors]).square().mean(1)
    kept = torch.cat([weight(model, name).any(1) for name in pruned.tensors])
    assert int((~kept).sum()) == 8
    assert float(rows[~kept].max()) <= float(rows[kept].min())


@pytest.mark.parametrize("make", [lambda: nn.MultiheadAttention(8, 2, batch_first=True), Separate])
def test_a_head_that_is_pruned_is_gone(make):
    torch.manual_seed(0)
    attention = make()
    with torch.no_grad():
        for name, param in attention.named_parameters():
            if "out_proj" not in name and param.ndim == 2:
                for part in param.split(8):
                    part[4:] *= 0.1
    pruned = prune(attention, 0.5, params=["*weight"], structured="head")
    assert pruned.share == pytest.approx(0.5)
    x = torch.randn(3, 5, 8)
    call = (lambda t: attention(t, t, t)[0]) if isinstance(attention, nn.MultiheadAttention) else attention
    expected = call(x)
    with torch.no_grad():  # the second head's values may now be anything
        if isinstance(attention, nn.MultiheadAttention):
            attention.in_proj_bias[20:] = 7.0
            assert not attention.in_proj_weight[4:8].any()
        else:
            attention.v_proj.bias[4:] = 7.0
            assert not attention.q_proj.weight[4:].any()
    torch.testing.assert_close(call(x), expected)


class Grouped(nn.Module):
    """Four query heads that share two heads of keys and values, as Llama's do."""

    num_heads = 4

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.k_proj, self.v_proj = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def test_shared_keys_and_values_go_when_all_their_heads_do():
    torch.manual_seed(0)
    attention = Grouped()
    with torch.no_grad():
        for head in (0, 1, 2):
            attention.q_proj.weight[2 * head : 2 * head + 2] *= 1e-3
        attention.k_proj.weight[:2] *= 1e-3
    prune(attention, 0.75, params=["*weight"], structured="head")
    assert not attention.q_proj.weight[:6].any()
    assert not attention.o_proj.weight[:, :6].any()
    assert attention.o_proj.weight[:, 6:].all()
    for layer in (attention.k_proj, attention.v_proj):
        assert not layer.weight[:2].any()
        assert layer.weight[2:].all()


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("share", {"share": 1.0}),
        ("share", {"share": -0.1}),
        ("share", {"share": 0.4, "structured": "2:4"}),
        ("by", {"by": "size"}),
        ("batches", {"by": "wanda"}),
        ("batches", {"by": "magnitude", "batches": [IDS]}),
        ("structured", {"structured": "column"}),
        ("structured", {"structured": "4:2"}),
        ("structured", {"by": "sparsegpt", "structured": "row", "batches": [IDS]}),
        ("3:5", {"share": 0.4, "structured": "3:5"}),
        ("scope", {"scope": "everything"}),
        ("scope", {"scope": "row", "structured": "head"}),
        ("scope", {"scope": "global", "by": "sparsegpt", "batches": [IDS]}),
        ("params", {"params": "everything"}),
        ("kweri", {"params": ["*.kweri"]}),
        ("params", {"params": []}),
        ("params", {"params": None}),
        ("params", {"params": [0]}),
    ],
)
def test_what_cannot_be_pruned_is_refused_by_the_name_of_the_argument(argument, options):
    model = reader()
    with pytest.raises(ValueError, match=argument):
        prune(model, **{"share": 0.5, **options})
    assert not list(model.buffers())


def test_models_that_cannot_be_pruned_are_refused():
    with pytest.raises(ValueError, match="no heads were found in Linear"):
        prune(nn.Linear(2, 2), 0.5, structured="head")
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got list"):
        prune([], 0.5)
    with pytest.raises(ValueError, match=r"params='matrices' names no tensor of LayerNorm"):
        prune(nn.LayerNorm(4), 0.5)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"0.weight is shared \(0.weight, 1.weight\)"):
        prune(tied, 0.5)
