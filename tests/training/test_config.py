import json

import pytest

from mirrormax.commands import build_parser
from mirrormax.commands.train import configuration
from mirrormax.training import (
    PROFILES,
    SentimentTraining,
    VisionTraining,
    config_of,
    run_key,
    with_choices,
    with_published_step,
)


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"p": 1}, ValueError, "p must be a finite number greater than 1, got 1"),
        ({"p": float("nan")}, ValueError, "p must be a finite number greater than 1, got nan"),
        ({"p": "x"}, TypeError, "p must be a number, got 'x'"),
        ({"lr": -1.0}, ValueError, "lr must be a finite number greater than 0"),
        ({"lr": float("inf")}, ValueError, "lr must be a finite number greater than 0"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"batch_size": 1.5}, TypeError, "batch_size must be an integer"),
        ({"train_limit": 0}, ValueError, "train_limit must be at least 1"),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number at least 0 and less than 1"),
        ({"validation": -0.1}, ValueError, "validation"),
        ({"seed": 1.5}, TypeError, "seed must be an integer"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"seed": 2**63}, ValueError, "seed must be at most 9223372036854775807"),
        (
            {"optimizer": "adam"},
            ValueError,
            "optimizer must be one of adabreg, mirror, md, sgd, adamw, paper, got 'adam'",
        ),
        ({"schedule": ["cosine"]}, TypeError, "schedule must be a string"),
        ({"data": None}, TypeError, "data must be a string"),
        ({"attention_only": "no"}, TypeError, "attention_only must be true or false, got 'no'"),
        (
            {"attention_only": True, "optimizer": "sgd"},
            ValueError,
            "attention_only=True is ignored with optimizer='sgd'; leave it out, or choose optimizer='md'",
        ),
        (
            {"normalize": "tensor", "optimizer": "sgd"},
            ValueError,
            "normalize='tensor' is ignored with optimizer='sgd'",
        ),
        (
            {"normalize": "global", "optimizer": "adamw"},
            ValueError,
            "normalize='global' is ignored with optimizer='adamw'",
        ),
        ({"momentum": 0.9, "optimizer": "adamw"}, ValueError, "momentum=0.9 is ignored with optimizer='adamw'"),
        ({"p": 1.5, "optimizer": "adamw"}, ValueError, "p=1.5 is ignored with optimizer='adamw'; leave it out, or"),
        ({"p": 10001}, ValueError, "p must be at most 10000, got 10001"),
        ({"p": 1.5, "optimizer": "sgd"}, ValueError, "p=1.5 is ignored with optimizer='sgd'"),
        ({"p": 1.5, "potential": "Hypentropy"}, ValueError, "p=1.5 is ignored with potential='Hypentropy'.*'Lp'"),
        ({"beta": 0.5}, ValueError, "beta=0.5 is ignored with potential='Lp'; .* choose potential='Hypentropy'"),
        ({"rest_lr": 0.5, "optimizer": "md"}, ValueError, "rest_lr=0.5 is ignored with attention_only=False"),
        ({"rest_lr": 0.5}, ValueError, "rest_lr=0.5 is ignored with optimizer='mirror'; leave it out, or choose opt"),
        ({"momentum": 0.9}, ValueError, "momentum=0.9 is ignored with optimizer='mirror'"),
        ({"lam": 0.5}, ValueError, "lam=0.5 is ignored with optimizer='mirror'; .* choose optimizer='adabreg'"),
        (
            {"density": 2.0, "optimizer": "adabreg"},
            ValueError,
            "density must be a finite number greater than 0 and at most 1, got 2.0",
        ),
        ({"potential": "SquaredLp", "optimizer": "sgd"}, ValueError, "potential='SquaredLp' is ignored with"),
        ({"warmup": -1.0}, ValueError, "warmup must be a finite number at least 0, got -1.0"),
        ({"p": 10**400}, ValueError, "p must be a finite number greater than 1, got 1000"),
        ({"dropout": 1}, ValueError, "dropout must be a finite number at least 0 and less than 1"),
        ({"heads": 3}, ValueError, "dim must be a multiple of heads, got dim=64 and heads=3"),
        ({"vocab": 5}, TypeError, "vocab must be a string"),
        ({"colour": 1}, ValueError, "'colour' is no choice of a sentiment run; known are attention_only,"),
    ],
    ids=str,
)
def test_choices_that_make_no_run_are_refused(choices, error, message):
    with pytest.raises(error, match=message):
        with_choices(SentimentTraining(), choices)


def test_image_sizes_must_go_together():
    with pytest.raises(ValueError, match="image_size must be a multiple of patch"):
        VisionTraining(patch=3)


@pytest.mark.parametrize("task", PROFILES)
def test_a_configuration_is_plain_data_and_comes_back(task):
    for config in PROFILES[task].values():
        told = json.loads(json.dumps(config.to_dict()))
        assert told.pop("task") == task
        assert type(config)(**told) == config


def test_a_key_tells_configurations_apart():
    keys = {run_key(SentimentTraining(seed=seed, p=p)) for seed in range(3) for p in (1.1, 1.5)}
    assert len(keys) == 6
    assert run_key(SentimentTraining(seed=1)) == run_key(SentimentTraining(seed=1))


def test_a_whole_number_and_the_same_as_a_float_are_one_choice():
    whole = SentimentTraining(p=2, lr=1, warmup=1, dropout=0, embedding_std=1)
    same = SentimentTraining(p=2.0, lr=1.0, warmup=1.0, dropout=0.0, embedding_std=1.0)
    assert run_key(whole) == run_key(same)


def test_the_papers_profiles_have_the_authors_protocol():
    text, image = PROFILES["sentiment"]["paper"], PROFILES["vision"]["paper"]
    assert (text.epochs, text.batch_size, text.reduction, text.by_length, text.validation) == (
        1000,
        100,
        "sum",
        False,
        0,
    )
    assert (text.stop_accuracy, text.schedule, text.warmup_epochs, text.lr) == (0.995, "constant", 0, 8e-4)
    assert (image.epochs, image.batch_size, image.reduction, image.validation) == (2000, 100, "mean", 0)
    assert image.schedule == "cosine-epochs"
    assert image.stop_accuracy > 1
    assert image.network().mean == (0.4914, 0.4822, 0.4465)


@pytest.mark.parametrize(
    ("task", "choices", "lr"),
    [
        ("sentiment", {"p": 3.0, "blocks": 6, "heads": 6}, 1e-5),
        ("sentiment", {"p": 2.0, "blocks": 4, "heads": 4}, 4e-4),
        ("vision", {"p": 3.0}, 0.01),
        ("vision", {"optimizer": "adamw"}, 1e-4),
        ("sentiment", {"p": 1.5}, None),
        ("sentiment", {"optimizer": "adamw"}, None),
        ("vision", {"optimizer": "sgd"}, None),
    ],
    ids=str,
)
def test_the_authors_step_size_goes_with_p_and_size_and_is_refused_where_they_have_none(task, choices, lr):
    config = with_choices(PROFILES[task]["paper"], choices)
    if lr is None:
        with pytest.raises(ValueError, match="lr must be given"):
            with_published_step(config)
    else:
        assert with_published_step(config).lr == lr


def test_the_papers_profiles_have_the_papers_sizes():
    text, image = PROFILES["sentiment"]["paper"].network(30522), PROFILES["vision"]["paper"].network()
    assert (text.dim, text.hidden, text.blocks, text.heads, text.max_length, text.dropout) == (
        384,
        1536,
        3,
        3,
        512,
        0.2,
    )
    assert (image.tokens, image.dim, image.hidden, image.blocks, image.heads * image.head_dim) == (
        145,
        512,
        512,
        6,
        512,
    )


def test_warm_up_is_a_share_of_the_epochs_unless_it_is_given():
    text, image = PROFILES["sentiment"]["small"], PROFILES["vision"]["small"]
    assert (text.warmup_epochs, image.warmup_epochs) == (2, 1)
    assert with_choices(text, {"epochs": 3}).warmup_epochs == 0.25
    assert with_choices(image, {"epochs": 200}).warmup_epochs == 10
    assert with_choices(text, {"epochs": 3, "warmup": 2.0}).warmup_epochs == 2
    assert with_choices(text, {"warmup": 0.0}).warmup_epochs == 0
    assert SentimentTraining().warmup_epochs == 0


def test_the_record_of_a_checkpoint_gives_its_configuration_back():
    config = VisionTraining(p=1.5, seed=3)
    assert config_of({**config.to_dict(), "version": "0.2.0", "rows": {}}) == config
    with pytest.raises(ValueError, match="does not say how it was trained"):
        config_of({})
    with pytest.raises(ValueError, match="is not one of this version"):
        config_of({"task": "vision", "p": 0.5})


@pytest.mark.parametrize(
    ("flags", "lr"),
    [
        (["--sparsity", "0.8"], 6e-3),
        (["--sparsity", "0.8", "--lr", "0.001"], 1e-3),
        (["--sparsity", "0"], None),
        ([], None),
    ],
)
def test_the_command_takes_a_larger_step_for_a_target_unless_it_is_given_one(flags, lr):
    words = ["train", "sentiment", *flags]
    assert configuration(build_parser(words).parse_args(words)).lr == lr
