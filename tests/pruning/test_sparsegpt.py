"""SparseGPT against a plain reference that solves the least-squares problem of every single step densely."""

import copy
import itertools
import re

import pytest
import torch
from audited_models import hugging_face
from torch import nn

from mirrormax import prune
from mirrormax.nets import Decoder, DecoderConfig, TransformerClassifier, TransformerConfig

IDS = torch.tensor([[3, 5, 1, 7, 2, 4], [6, 2, 5, 1, 0, 0]])


def layer(rows, columns):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(columns, rows)).double()


def correlated(count, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    return torch.randn(count, columns, generator=generator, dtype=torch.float64) @ mix


def reference(W, X, share, scope, pattern=None, width=128):
    """Column by column; the cost of an entry and the best move of those behind it come from dense solves."""
    W, H = W.clone(), X.T @ X
    H += 0.01 * H.diagonal().mean() * torch.eye(len(H), dtype=H.dtype)
    rows, columns = W.shape
    keep = torch.ones(rows, columns, dtype=torch.bool)
    for j in range(columns):
        if j % width == 0:
            block = range(j, min(j + width, columns))
            cost = torch.stack([W[:, c] ** 2 / torch.linalg.inv(H[c:, c:])[0, 0] for c in block], 1)
            if pattern:
                n, m = pattern
                order = cost.unflatten(1, (-1, m)).argsort(-1).argsort(-1)
                keep[:, block] = (order >= m - n).flatten(1)
            else:
                flat = cost if scope == "row" else cost.reshape(1, -1)
                count = int(share * flat.shape[1])
                keep[:, block] = (flat.argsort(1).argsort(1) >= count).view(cost.shape)
        for r in range(rows):
            if not keep[r, j]:
                if j + 1 < columns:
                    W[r, j + 1 :] += W[r, j] * torch.linalg.solve(H[j + 1 :, j + 1 :], H[j + 1 :, j])
                W[r, j] = 0.0
    return keep, W


@pytest.mark.parametrize("scope", ["matrix", "row"])
def test_every_step_is_the_best_one(scope):
    model, X = layer(5, 12), correlated(40, 12)
    keep, expected = reference(model[0].weight.detach(), X, 0.5, scope)
    pruned = prune(model, 0.5, "sparsegpt", scope, batches=[X[:15], X[15:]])
    assert torch.equal(model[0].weight != 0, keep)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-6, atol=1e-8)
    assert pruned.share == 0.5


def test_two_of_four():
    model, X = layer(4, 8), correlated(30, 8)
    keep, expected = reference(model[0].weight.detach(), X, 0.5, "row", (2, 4))
    prune(model, 0.5, "sparsegpt", structured="2:4", batches=[X])
    assert torch.equal(model[0].weight != 0, keep)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("by", ["sparsegpt", "wanda", "magnitude"])
def test_rows_that_a_pattern_does_not_divide_are_refused_by_every_score(by):
    model = layer(4, 6)  # 24 weights, which four divides
    with pytest.raises(ValueError, match=r"multiple of 4.*0\.weight has 6 inputs"):
        prune(model, 0.5, by, structured="2:4", batches=None if by == "magnitude" else [correlated(30, 6)])
    assert not list(model.buffers())


def test_later_columns_are_chosen_by_what_earlier_ones_left():
    model, X = layer(3, 160), correlated(200, 160)
    keep, expected = reference(model[0].weight.detach(), X, 0.5, "row")
    prune(model, 0.5, "sparsegpt", "row", batches=[X])
    assert torch.equal(model[0].weight != 0, keep)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-5, atol=1e-7)


def test_outputs_change_less_than_by_wanda():
    X = correlated(200, 24)
    changes = {}
    for by in ("sparsegpt", "wanda", "magnitude"):
        model = layer(16, 24)
        before = model(X).detach()
        prune(model, 0.8, by, "matrix", batches=None if by == "magnitude" else [X])
        changes[by] = float((model(X).detach() - before).square().mean())
    assert changes["sparsegpt"] < changes["wanda"] < changes["magnitude"]


def test_it_is_the_default_where_there_is_data():
    one, other, X = layer(5, 12), layer(5, 12), correlated(40, 12)
    prune(one, 0.5, batches=[X]), prune(other, 0.5, "sparsegpt", "matrix", batches=[X])
    assert torch.equal(one[0].weight, other[0].weight)


def test_layers_are_pruned_on_what_pruned_layers_give():
    """One after the other by hand, each on the inputs that the model with all before it pruned hands over."""
    torch.manual_seed(0)
    sizes = (6, 8, 8, 4)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))).double()
    by_hand, X = copy.deepcopy(model), correlated(50, 6)
    prune(model, 0.5, "sparsegpt", batches=[X])
    given = X
    for k in range(3):
        one = nn.Sequential(by_hand[k])
        prune(one, 0.5, "sparsegpt", batches=[given]).finish()
        torch.testing.assert_close(model[k].weight.detach(), one[0].weight.detach(), rtol=1e-8, atol=1e-10)
        given = one(given).detach()


@pytest.mark.parametrize("blocks", [[nn.Linear(6, 6), None], [None, None], [nn.ReLU()] * 2])
def test_a_list_that_is_no_chain_does_no_harm(blocks):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks, self.last = nn.Linear(6, 6), nn.ModuleList(blocks), nn.Linear(6, 4)

        def forward(self, x):
            h = self.first(x)
            return self.last(h if self.blocks[0] is None else self.blocks[0](h))

    assert prune(Net(), 0.5, "sparsegpt", batches=[torch.randn(9, 6)]).share == 0.5


def ours():
    return TransformerClassifier(TransformerConfig(11, max_length=8, dim=8, hidden=16, blocks=2, heads=2)), IDS


def lm():
    return Decoder(DecoderConfig(11, context=8, dim=8, hidden=16, blocks=2, heads=2)), IDS


def bert():
    return hugging_face("bert"), {"input_ids": IDS, "attention_mask": (IDS != 0).long()}


def torchs():
    block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return nn.TransformerEncoder(block, 2, enable_nested_tensor=False), torch.randn(3, 5, 8)


@pytest.mark.parametrize("make", [ours, lm, bert, torchs])
def test_blocks_run_one_at_a_time_as_the_whole_model_does(make):
    """The last block's layers see what a pass of the whole model, pruned up to there, hands them."""
    torch.manual_seed(0)
    model, batch = make()
    model = model.double().eval()
    if not isinstance(batch, dict) and batch.is_floating_point():
        batch = batch.double()
    whole = copy.deepcopy(model)
    pruned = prune(model, 0.5, "sparsegpt", batches=[batch])
    names = list(pruned.tensors)
    last = [re.match(r".*?\.\d+\.", name)[0] for name in names if re.search(r"\.\d+\.", name)][-1]
    pruned.finish()
    state = model.state_dict()
    whole.load_state_dict({name: value for name, value in state.items() if not name.startswith(last)}, strict=False)
    here = [name for name in names if name.startswith(last)]
    outside = {name: whole.get_parameter(name).detach().clone() for name in here}
    prune(whole, 0.5, "sparsegpt", params=here, batches=[batch]).finish()
    for name in here:
        assert not torch.equal(outside[name], state[name])
        torch.testing.assert_close(whole.get_parameter(name).detach(), state[name], rtol=1e-6, atol=1e-8)


def test_undo_gives_the_old_weights_back_and_nothing_is_left_after_a_failure():
    torch.manual_seed(0)
    model, batch = lm()
    before = copy.deepcopy(model.state_dict())
    pruned = prune(model, 0.5, "sparsegpt", batches=[batch])
    assert not all(torch.equal(model.state_dict().get(name, torch.empty(0)), value) for name, value in before.items())
    pruned.undo()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    model.extra = nn.Linear(4, 4)  # never called
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"extra\.weight"):
        prune(model, 0.5, "sparsegpt", batches=[batch])
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("by", ["magnitude", "sparsegpt"])
def test_a_masked_model_can_be_copied(by):
    model, X = layer(5, 12), correlated(40, 12)
    prune(model, 0.5, by, batches=None if by == "magnitude" else [X])
    assert torch.equal(copy.deepcopy(model)(X), model(X))


def test_what_was_pruned_before_stays_so():
    model, X = layer(5, 12), correlated(40, 12)
    prune(model, 0.3)
    zero = model[0].weight == 0
    again = prune(model, 0.6, "sparsegpt", batches=[X])
    assert not model[0].weight[zero].any()
    assert again.share == pytest.approx(0.6)


def test_an_input_that_is_always_zero_does_no_harm():
    model, X = layer(5, 12), correlated(40, 12)
    X[:, 3] = 0.0
    pruned = prune(model, 0.5, "sparsegpt", batches=[X])
    assert pruned.share == 0.5
    assert not model[0].weight[:, 3].any()
    assert bool(model[0].weight.isfinite().all())
