"""What a run leaves: a row per epoch, the best weights, and at the end a summary and two models.

``config.json`` is there from the start, ``resume.ckpt`` and ``best.safetensors`` while training, and ``metrics.csv``
grows by a row per epoch. At the end there are ``timing.csv`` (what each epoch took, apart because it alone differs
when a run is repeated), ``summary.json``, ``model/`` (the epoch that validation chose) and ``last/`` (the
last one). A language model is chosen by its validation loss, and also leaves ``sample.txt``, text that it made up.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from mirrormax._results import ResultFolder
from mirrormax.data import text_of
from mirrormax.nets import Decoder, write_model
from mirrormax.training.config import config_of
from mirrormax.training.inputs import EVALUATED, SPLITS, Prepared

CONFIG, RESUME, BEST = "config.json", "resume.ckpt", "best.safetensors"
METRICS, TIMING, SUMMARY, SAMPLE, LOGS = "metrics.csv", "timing.csv", "summary.json", "sample.txt", "logs"
SAMPLED = 256  # tokens of the sample
SCRATCH = (RESUME, BEST)

Row = dict[str, float]


def zeros(optimizer: torch.optim.Optimizer) -> Row:
    """The share of zeros among the weights that have a target, and the target; nothing where none has."""
    targets = [group for group in optimizer.param_groups if group.get("sparsity")]
    weights = [param.detach() for group in targets for param in group["params"]]
    if not weights:
        return {}
    share = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    return {"zeros": share, "sparsity": float(targets[0]["sparsity"])}


def is_sparse_enough(row: Row) -> bool:
    """Whether the target of zeros, if there is one, was reached in this epoch, to a weight in ten thousand."""
    return row.get("zeros", 1.0) >= row.get("sparsity", 0.0) - 1e-4


def score(row: Row, chosen_by: str = "accuracy") -> float:
    """What an epoch is chosen by, greater being better: its validation accuracy, minus its validation loss, or its
    number where no rows are held out for validation. An epoch before the target of zeros was reached is not chosen."""
    if not is_sparse_enough(row):
        return -math.inf
    if chosen_by == "last":
        return row["epoch"]
    value = row["validation_accuracy"] if chosen_by == "accuracy" else -row["validation_loss"]
    return value if math.isfinite(value) else -math.inf


def chosen_epoch(rows: Sequence[Row], chosen_by: str = "accuracy") -> Row:
    """The row of the epoch that validation chooses."""
    return max(rows, key=lambda row: score(row, chosen_by))


def save_metrics(folder: ResultFolder, rows: Sequence[Row]) -> None:
    """The epochs so far."""
    folder.save_rows(METRICS, [name for name in rows[0] if name != "seconds"], rows)


def read_metrics(folder: str | Path) -> list[Row]:
    """A row per epoch of a run that is finished or under way; epochs count from 1."""
    with (Path(folder) / METRICS).open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def write_results(folder: ResultFolder, prepared: Prepared, training: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the results of a run that has ended; only then is there nothing left to resume."""
    model, ended = prepared.model, summary(rows, prepared, config_of(training).chosen_by)
    write = partial(write_model, folder.writing, model, prepared.classes, prepared.tokenizer, training)
    write(under="last/")
    model.load_state_dict(load_file(folder.path / BEST))
    write(under="model/")
    save_metrics(folder, rows)
    folder.save_rows(TIMING, ["epoch", "seconds"], rows)
    folder.save_json(SUMMARY, ended)
    if isinstance(model, Decoder):  # a text that it makes up, token by token, to its end or to so many tokens
        generator = torch.Generator().manual_seed(int(training["seed"]))
        ids = model.eval().generate(torch.zeros(1, dtype=torch.int64), SAMPLED, generator=generator)
        folder.save_text(SAMPLE, text_of(prepared.tokenizer, ids[1:].tolist()) + "\n")
    folder.finish(*SCRATCH, TIMING, epochs=len(rows), test_accuracy=ended["test_accuracy"])
    folder.remove(*SCRATCH)


def summary(rows: Sequence[Row], prepared: Prepared, chosen_by: str = "accuracy") -> dict[str, Any]:
    """What came out: at the epoch that validation chose, at the best test epoch as the paper counts, and at the end."""
    chosen, last = chosen_epoch(rows, chosen_by), rows[-1]
    losses = {name: chosen[name] for name in chosen if name.startswith(EVALUATED) and not name.endswith("accuracy")}
    return {
        **(losses if chosen_by == "loss" else {}),
        **({"zeros": chosen["zeros"]} if "zeros" in chosen else {}),
        "epochs": len(rows),
        "chosen_epoch": int(chosen["epoch"]),
        "validation_accuracy": None if chosen_by == "last" else chosen["validation_accuracy"],
        "test_accuracy": chosen["test_accuracy"],
        "best_test_accuracy": max(row["test_accuracy"] for row in rows),
        "last_test_accuracy": last["test_accuracy"],
        "last_train_accuracy": last["train_accuracy"],
        "diverged": not math.isfinite(last["train_loss"]),
        "examples": rows_of_splits(prepared),
        "weights": sum(param.numel() for param in prepared.model.parameters()),
        "majority_share": majority_shares(prepared),
        "no_better_than_majority": no_better_than_majority(chosen, prepared),
    }


def rows_of_splits(prepared: Prepared) -> dict[str, int]:
    """How many rows each split has."""
    return dict(zip(SPLITS, map(len, prepared.splits), strict=True))


def majority_shares(prepared: Prepared) -> dict[str, float]:
    """The accuracy on each split that has rows of a constant answer: the class that most training rows have."""
    majority = np.bincount(np.asarray(prepared.splits[0].labels)).argmax()
    named = zip(SPLITS, prepared.splits, strict=True)
    return {name: float((np.asarray(part.labels) == majority).mean()) for name, part in named if len(part)}


def no_better_than_majority(row: Row, prepared: Prepared) -> bool:
    """Whether the model of an epoch has learnt nothing: no accuracy is above that of the best constant answer."""
    for name, part in zip(EVALUATED, prepared.splits[1:], strict=True):
        if len(part):
            labels = np.asarray(part.labels)
            constant = np.bincount(labels).max() / len(labels)
            if row[f"{name}_accuracy"] > constant + 0.5 / len(part):  # by half a row
                return False
    return True


def majority_sentence(ended: Mapping[str, Any]) -> str:
    """What to say of a run that is no better than the majority class; a language model may still know frequencies."""
    is_lm = "test_bits_per_byte" in ended
    answers, learnt = ("token", "no more than how frequent tokens are") if is_lm else ("class", "nothing")
    return (
        f"This model is no better than always answering the most frequent {answers}: it has learnt {learnt}; try more "
        "--epochs, another --lr or another --p."
    )
