"""prune: what is cut, that it stays cut while training, and that it can be put back."""

import pytest
import torch
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


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_smallest_entries_of_all_matrices_together_are_cut(share):
    model, before = reader(), reader()
    cut = prune(model, share)
    names = [n for n, p in before.named_parameters() if p.ndim == 2 and n.startswith("blocks")]
    assert sorted(cut.tensors) == sorted(names)
    everything = torch.cat([before.get_parameter(name).detach().abs().flatten() for name in names])
    threshold = everything.sort().values[int(share * everything.numel())]
    for name in names:
        path, _, own = name.rpartition(".")
        weight, old = getattr(model.get_submodule(path), own), before.get_parameter(name)
        torch.testing.assert_close(weight, torch.where(old.abs() >= threshold, old, 0.0))
    assert cut.share == pytest.approx(share, abs=1e-3)
    assert torch.equal(model.embed.weight, before.embed.weight)
    assert torch.equal(model.head.weight, before.head.weight)


def test_weights_that_are_no_numbers_are_kept():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model[0].weight[1, 2] = torch.nan
    cut = prune(model, 0.5, scope="matrices")
    assert cut.share == 0.5
    assert model[0].weight[1, 2].isnan()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_model_computes_with_the_cut_weights(mode):
    model, by_hand = reader(), reader()
    prune(model, 0.8)
    with torch.no_grad():
        for name, param in by_hand.named_parameters():
            path, _, own = name.rpartition(".")
            param.copy_(getattr(model.get_submodule(path), own))
    getattr(model, mode)(), getattr(by_hand, mode)()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), by_hand(IDS), rtol=1e-5, atol=1e-6)


def test_what_is_cut_stays_cut_while_training_goes_on():
    model = reader()
    optimizer = MirrorAdamW(model, lr=1e-2, p=1.5)
    cut = prune(model, 0.7)
    zero = {name: weight(model, name) == 0 for name in cut.tensors}
    before = {name: weight(model, name).detach().clone() for name in cut.tensors}
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
    cut = prune(model, 0.9)
    cut.undo()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in before.named_parameters()}
    assert not list(model.buffers())
    for name, param in model.named_parameters():
        assert torch.equal(param, before.get_parameter(name))
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    torch.testing.assert_close(model(IDS), before(IDS))
    with pytest.raises(ValueError, match="has no mask any more"):
        cut.undo()


def test_finish_leaves_plain_weights_with_zeros():
    model = reader()
    cut = prune(model, 0.9)
    expected = model(IDS)
    cut.finish()
    assert set(model.state_dict()) == set(reader().state_dict())
    torch.testing.assert_close(model(IDS), expected)
    assert float((model.blocks.layers[0].linear1.weight == 0).float().mean()) > 0.5


def test_cutting_more_later_counts_what_is_cut():
    once, twice = reader(), reader()
    prune(once, 0.8)
    prune(twice, 0.5)
    cut = prune(twice, 0.8)
    assert cut.share == pytest.approx(0.8, abs=1e-3)
    for name in cut.tensors:
        assert torch.equal(weight(once, name) == 0, weight(twice, name) == 0)
    cut.undo()
    for name, param in twice.named_parameters():
        assert torch.equal(param, reader().get_parameter(name))


def test_rows_are_cut_whole_by_their_mean_square():
    model, before = reader(), reader()
    cut = prune(model, 0.25, scope=["*linear1.weight"], structured="row")
    assert len(cut.tensors) == 2
    rows = torch.cat([weight(before, name).detach() for name in cut.tensors]).square().mean(1)
    kept = torch.cat([weight(model, name).any(1) for name in cut.tensors])
    assert int((~kept).sum()) == 8
    assert float(rows[~kept].max()) <= float(rows[kept].min())


@pytest.mark.parametrize("make", [lambda: nn.MultiheadAttention(8, 2, batch_first=True), Separate])
def test_a_head_that_is_cut_is_gone(make):
    torch.manual_seed(0)
    attention = make()
    with torch.no_grad():
        for name, param in attention.named_parameters():
            if "out_proj" not in name and param.ndim == 2:
                for part in param.split(8):
                    part[4:] *= 0.1
    cut = prune(attention, 0.5, scope=["*weight"], structured="head")
    assert cut.share == pytest.approx(0.5)
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


def test_what_cannot_be_cut_is_refused():
    model = reader()
    for options, message in [
        ({"share": 1.0}, "share must be .* less than 1, got 1.0"),
        ({"share": -0.1}, "share must be"),
        ({"share": 0.5, "by": "size"}, "by must be 'magnitude', 'margin' or the result of margin_scores, got 'size'"),
        ({"share": 0.5, "structured": "column"}, "structured must be None, 'row' or 'head', got 'column'"),
        ({"share": 0.5, "scope": "everything"}, "scope must be 'matrices', 'attention' or a list of patterns"),
        ({"share": 0.5, "scope": ["*.kweri"]}, r"pattern '\*.kweri' matches no parameter"),
    ]:
        with pytest.raises(ValueError, match=message):
            prune(model, **options)
    with pytest.raises(ValueError, match="no heads were found in Linear"):
        prune(nn.Linear(2, 2), 0.5, structured="head")
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got list"):
        prune([], 0.5)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"0.weight is shared \(0.weight, 1.weight\)"):
        prune(tied, 0.5)
    assert not list(model.buffers())
