import math

import pytest
import torch
from torch.nn import functional

from mirrormax.nets import TransformerClassifier
from mirrormax.optim import MirrorDescent, param_groups
from mirrormax.training import prepare
from mirrormax.training.classification import epoch_seed
from mirrormax.training.optimizers import default_lr, make_optimizer, make_schedule, makes_sparse_steps

IDS = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0], [2, 5, 9, 3]])
LABELS = torch.tensor([0, 1, 1])


def model_of(config, sparse=False):
    torch.manual_seed(0)
    return TransformerClassifier(config.network(20), sparse_embedding=sparse)


def steps(model, optimizer, count=4):
    for _ in range(count):
        optimizer.zero_grad()
        functional.cross_entropy(model(IDS), LABELS).backward()
        optimizer.step()
    return model


CHOICES = {
    **{f"md {name}": {"potential": name} for name in ("Lp", "SquaredLp", "Hypentropy")},
    "md p=3": {"p": 3.0},
    "md momentum": {"momentum": 0.9},
    "md weight decay": {"weight_decay": 0.1},
    "md normalised by tensor": {"normalize": "tensor", "lr": 0.01},
    "md normalised globally": {"normalize": "global", "lr": 0.01},
    "md attention only": {"attention_only": True, "rest_lr": 0.05},
    "sgd": {"optimizer": "sgd"},
    "sgd momentum": {"optimizer": "sgd", "momentum": 0.9},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "mirror": {"optimizer": "mirror", "weight_decay": 0.01},
    "mirror Hypentropy": {"optimizer": "mirror", "potential": "Hypentropy"},
    "adabreg": {"optimizer": "adabreg", "lam": 0.01},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_every_optimizer_by_name_moves_all_weights_sparsely_or_not(text_run, choices):
    config = text_run(dropout=0.0, **choices)
    first = {name: value.clone() for name, value in model_of(config).named_parameters()}
    trained = {}
    for sparse in {False, makes_sparse_steps(config)}:
        model = model_of(config, sparse)
        steps(model, make_optimizer(model, config))
        assert (model.tokens.weight.grad.is_sparse) == sparse
        for name, value in model.named_parameters():
            assert torch.isfinite(value).all()
            assert not torch.equal(value, first[name])
        trained[sparse] = model.state_dict()
    if True in trained:
        for name, value in trained[False].items():
            torch.testing.assert_close(trained[True][name], value)


@pytest.mark.parametrize(
    ("choices", "sparse"),
    [
        ({}, True),
        ({"momentum": 0.9}, False),
        ({"weight_decay": 0.1}, False),
        ({"potential": "SquaredLp"}, False),
        ({"potential": "Hypentropy"}, True),
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "adamw"}, False),
        ({"precision": "bf16-mixed"}, False),
    ],
    ids=str,
)
def test_gradients_are_sparse_where_the_optimizer_leaves_other_rows_alone(text_run, choices, sparse):
    assert makes_sparse_steps(text_run(**choices)) == sparse


def test_attention_only_leaves_the_rest_to_sgd(text_run):
    config = text_run(attention_only=True, p=1.1, lr=0.3, rest_lr=0.05, dropout=0.0)
    optimizer = make_optimizer(model_of(config), config)
    attention, rest = optimizer.param_groups
    assert attention["name"] == "attention"
    assert {name.rsplit(".", 2)[1] for name in attention["param_names"]} == {"query", "key", "value"}
    assert (attention["lr"], rest["lr"]) == (0.3, 0.05)
    model, same = model_of(config), model_of(config)
    sgd = torch.optim.SGD([p for n, p in same.named_parameters() if n in rest["param_names"]], lr=0.05)
    steps(model, make_optimizer(model, config), 1)
    steps(same, sgd, 1)
    for name in rest["param_names"]:
        torch.testing.assert_close(model.get_parameter(name), same.get_parameter(name))


@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 2.0, 3.0, 6.0])
def test_the_default_step_moves_large_entries_of_matrices_as_sgd_would(text_run, p):
    """Within a factor of four in the root mean square. Small entries move faster by far for p > 2, slower for p < 2."""

    def moved(**choices):
        config = text_run(dropout=0.0, **choices)
        before, model = model_of(config), model_of(config)
        steps(model, make_optimizer(model, config), 1)
        changes = []
        for name in (
            name for name, _ in model.named_parameters() if name.endswith(("expand.weight", "contract.weight"))
        ):
            old = before.get_parameter(name)
            large = old.abs() > old.square().mean().sqrt()
            changes.append((model.get_parameter(name) - old)[large])
        return torch.cat(changes).square().mean().sqrt().item()

    assert 1 / 4 < moved(p=p) / moved(optimizer="sgd") < 4


def test_default_step_sizes(text_run):
    model = model_of(text_run())
    assert default_lr(model, text_run(optimizer="sgd")) == default_lr(model, text_run(p=2.0)) == 0.3
    assert default_lr(model, text_run(optimizer="adamw")) == 1e-3
    assert default_lr(model, text_run(optimizer="mirror", p=1.5)) == 3e-3
    assert default_lr(model, text_run(optimizer="adabreg")) == 1e-2


def test_mirror_gives_its_geometry_to_the_matrices_alone(text_run):
    config = text_run(optimizer="mirror", p=1.25)
    matrices, rest = make_optimizer(model_of(config), config).param_groups
    assert (matrices["p"], matrices["moments"], rest["p"], rest["moments"]) == (1.25, "entry", 2.0, "entry")
    assert "tokens.weight" in rest["param_names"]
    assert "blocks.0.attention.key.weight" in matrices["param_names"]


def test_adabreg_begins_with_few_weights_and_ends_with_exact_zeros(image_run):
    config = image_run(optimizer="adabreg", density=0.25, lam=0.05)
    model, whole = prepare(config).model, prepare(image_run()).model
    names = param_groups(model, scope="matrices")[0]["param_names"]
    kept = torch.cat([(model.get_parameter(name) != 0).flatten() for name in names])
    assert 0.15 < kept.double().mean() < 0.35
    assert torch.equal(model.head.weight, whole.head.weight)
    optimizer = make_optimizer(model, config)
    for _ in range(3):
        model(torch.rand(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    assert any((model.get_parameter(name) == 0).any() for name in names)


def test_paper_is_another_name_of_plain_mirror_descent(text_run):
    assert text_run(optimizer="paper") == text_run(optimizer="md")
    assert type(make_optimizer(model_of(text_run()), text_run(optimizer="paper"))) is MirrorDescent


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_step_size_rises_in_warm_up_and_then_follows_its_schedule(text_run, schedule):
    config = text_run(lr=2.0, optimizer="sgd", schedule=schedule, warmup=0.5, epochs=3)
    optimizer = make_optimizer(model_of(config), config)
    scheduler = make_schedule(optimizer, config, steps_per_epoch=8)
    found = []
    for _ in range(24):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert found[:4] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    rest = [2.0] * 20 if schedule == "constant" else [1 + math.cos(math.pi * k / 20) for k in range(20)]
    assert found[4:] == pytest.approx(rest)


def test_the_papers_cosine_falls_with_every_epoch(text_run):
    config = text_run(lr=2.0, optimizer="sgd", schedule="cosine-epochs", epochs=3)
    optimizer = make_optimizer(model_of(config), config)
    scheduler = make_schedule(optimizer, config, steps_per_epoch=2)
    epochs = torch.optim.SGD(model_of(config).parameters(), lr=2.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(epochs, 3)
    for _ in range(3):
        for _ in range(2):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(epochs.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        epochs.step()
        theirs.step()


def test_seeds_of_epochs_and_processes_differ():
    seeds = {epoch_seed(seed, epoch, rank) for seed in range(4) for epoch in range(20) for rank in range(3)}
    assert len(seeds) == 240
    assert all(0 <= seed < 2**63 for seed in seeds)
