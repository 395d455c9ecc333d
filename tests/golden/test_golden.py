"""The numbers of training, audits and pruning are those of their revision."""

import csv

import pytest
from audited_models import text_model, words

from golden import check, fingerprint
from mirrormax import audit, auditing, prune, pruning, training
from mirrormax.training import LanguageTraining, SentimentTraining, VisionTraining, read_metrics

SMALL = {"dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "epochs": 1, "batch_size": 16, "train_limit": 60}
IMAGES = {**SMALL, "patch": 4, "head_dim": 4}
LOSSES = ("train_loss", "validation_loss", "test_loss")


def losses(config, folder):
    (row,) = read_metrics(training.train(config, folder))
    return [row[name] for name in LOSSES]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for k in range(60):
            writer.writerow([f"a {('dull', 'warm')[k % 2]} film of {('some', 'two', 'no')[k % 3]} people", k % 2])
    return str(path)


def test_training(tmp_path, reviews):
    optimizers = ("mirror", "md", "adabreg", "sgd", "adamw")
    runs = {f"vision {name}": VisionTraining(optimizer=name, **IMAGES) for name in optimizers}
    runs["sentiment"] = SentimentTraining(data=reviews, vocab_size=100, max_length=12, **SMALL)
    runs["lm"] = LanguageTraining(data=reviews, context=16, **SMALL)
    check("training", training.REVISION, {name: losses(run, tmp_path / name) for name, run in runs.items()}, rtol=1e-3)


def test_audit():
    heads = audit(text_model(), [words()], p=1.5, query="first", samples=4, controls=1).heads
    measured = ("mass", "entropy", "margin", "optimal_margin", "ratio", "divergence", "in_order", "hoyer")
    measured += ("on_first", "on_previous", "on_self", "on_place")
    numbers = {f"{head.layer}/{head.head}": [getattr(head, name) for name in measured] for head in heads}
    check("audit", auditing.REVISION, numbers, rtol=1e-3)


def test_prune():
    model = text_model()
    prune(model, 0.5)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    check("prune", pruning.REVISION, fingerprint(weights))
