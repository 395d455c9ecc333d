"""The study of docs/audit-robustness.md: does the audit predict what rounding and pruning change?

Run ``python docs/robustness_study.py MODEL … --out study.json``; MODEL is what ``mirrormax audit`` takes. It prints
the tables and verdicts of that page, by the rules that stand there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from mirrormax.auditing import Loaded, adapter_for, load_for_audit, make_batches, read_data, watching
from mirrormax.auditing.layers import View, attention_of
from mirrormax.auditing.robustness import Prediction, input_norms, rounded, selections

SCHEMES = ("int8", "int4", "int3", 0.5, "0.5/wanda")
EVERY = ("int8", "int4")
"""Schemes that are also tried on every matrix of the blocks."""
NAMES = {"0.5": "half, magnitude", "0.5/wanda": "half, Wanda"}
TEXTS, LONGEST, RESAMPLES = 128, 128, 500
ENOUGH, LEVEL, FEW = 0.5, 1.5, 1e-3
BESIDE = ("mass", "entropy", "lead")
Array = np.ndarray[Any, Any]


def study(folder: str, texts: int, every_scheme: tuple[str, ...]) -> dict[str, Any]:
    """The numbers of one model: for every scheme the correlations with their intervals, and both mean shares."""
    loaded = load_for_audit(folder)
    data = read_data("reviews", limit=2 * texts, models=[loaded])
    rows = list(make_batches(loaded, data, LONGEST, 1))
    order = np.random.default_rng(0).permutation(len(rows))
    ours, others = ([rows[k] for k in sorted(part)] for part in np.array_split(order, 2))
    adapter = adapter_for(loaded.model)
    with watching(adapter) as watch:
        watch.run(loaded.batch([row["input_ids"][0].tolist() for row in ours[:32]]))
        views = [layer.view() for layer in watch.layers]
        layers = [Prediction(view.layer, SCHEMES, input_norms(view)) for view in views]
        predicted = [predict(watch.run(row), layers) for row in ours]
        own = [selections(watch, row) for row in others]
        matrices = [pair for one in layers for pair in zip(one.layer.matrices(), one.inputs, strict=True)]
        measured = {str(scheme): differing(watch, others, own, matrices, scheme) for scheme in SCHEMES}
        blocks = [(one, None) for one in block_matrices(loaded)]
        every = {scheme: differing(watch, others, own, blocks, scheme) for scheme in every_scheme}
    return {
        "model": Path(folder).name,
        "heads": int(predicted[0]["counts"].shape[1]),
        "of queries and keys": {name: compared(predicted, name, flips) for name, flips in measured.items()},
        "of every matrix": {name: compared(predicted, name, flips) for name, flips in every.items()},
    }


def block_matrices(loaded: Loaded) -> list[Tensor]:
    """The matrices of all linear layers but the one that reads answers out."""
    head = getattr(loaded.model, "lm_head", None)
    return [one.weight.detach() for one in loaded.model.modules() if isinstance(one, nn.Linear) and one is not head]


def predict(views: list[View], layers: list[Prediction]) -> dict[str, Array]:
    """Of one text, by head of all layers: rows, sums of predicted changes, of mass and entropy, and every lead."""
    found: dict[str, list[Tensor]] = {}
    for view, layer in zip(views, layers, strict=True):
        Q = view.mask.shape[1]
        rows = (view.mask.sum(-1) > 1) & (view.mask.any(1)[:, :Q] if view.mask.shape[2] >= Q else True)
        logits = view.logits().masked_fill(~view.mask.unsqueeze(1), -torch.inf)
        before = {name: sums.clone() for name, sums in layer.flips.items()}
        layer.add(view, logits, rows)
        attention = attention_of(view.squashed(logits), view.mask).transpose(1, 2)[rows]  # (N, H, T)
        count = view.mask[rows].sum(-1).double().log().unsqueeze(-1)
        best = logits.transpose(1, 2)[rows].topk(2, -1).values
        parts = {name: (sums - before[name])[None] for name, sums in layer.flips.items()}
        parts |= {"mass": attention.amax(-1).sum(0)[None], "lead": best[..., 0] - best[..., 1]}
        parts["entropy"] = (torch.special.entr(attention).sum(-1) / count).sum(0)[None]
        parts["counts"] = torch.full((1, attention.shape[1]), float(rows.sum()))
        for name, part in parts.items():
            found.setdefault(name, []).append(part)
    return {name: torch.cat(parts, 1).numpy() for name, parts in found.items()}


def differing(watch: Any, rows: list[Any], own: list[list[Tensor]], matrices: Any, scheme: Any) -> Array:
    """How many selections of every head differ in every text, and how many there are: (texts, 2, heads)."""
    found = []
    with rounded(matrices, scheme):
        for row, before in zip(rows, own, strict=True):
            after = selections(watch, row)
            flips = torch.cat([(a != b).double().sum(0) for a, b in zip(before, after, strict=True)])
            counts = torch.cat([torch.full((a.shape[1],), float(len(a))) for a in before])
            found.append(torch.stack([flips, counts.double()]).numpy())
    return np.array(found)


def compared(predicted: list[dict[str, Array]], name: str, flips: Array) -> dict[str, Any]:
    """Rank correlations with what was measured, and the mean shares, each with its interval over heads and texts."""
    sums = {key: np.concatenate([one[key] for one in predicted]) for key in (name, "mass", "entropy", "counts")}
    leads = [one["lead"] for one in predicted]

    def numbers(texts: Array, others: Array, heads: Array) -> dict[str, float]:
        counts = sums["counts"][texts].sum(0)
        share = {key: (sums[key][texts].sum(0) / counts)[heads] for key in (name, "mass", "entropy")}
        share["lead"] = np.median(np.concatenate([leads[k][:, heads] for k in texts]), 0)
        real = (flips[others, 0].sum(0) / flips[others, 1].sum(0))[heads]
        told = {key: correlation(values, real) for key, values in share.items()}
        return {
            "predicted": told[name],
            **{key: abs(told[key]) for key in BESIDE},
            **{f"over {key}": told[name] - abs(told[key]) for key in BESIDE},
            "mean predicted": float(share[name].mean()),
            "mean measured": float(real.mean()),
            "level": float(share[name].mean() / max(real.mean(), 1e-12)),
        }

    random, sizes = np.random.default_rng(0), (len(predicted), len(flips), flips.shape[2])
    point = numbers(*(np.arange(size) for size in sizes))
    drawn = [numbers(*(random.integers(0, size, size) for size in sizes)) for _ in range(RESAMPLES)]
    ends = {key: np.nanquantile([one[key] for one in drawn], [0.025, 0.975]) for key in point}
    told = {key: [point[key], *map(float, ends[key])] for key in point}
    return {**told, "verdict": verdict(told)}


def correlation(a: Array, b: Array) -> float:
    """Spearman's; NaN where one of them is constant."""
    a, b = rankdata(a) - (len(a) + 1) / 2, rankdata(b) - (len(b) + 1) / 2
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else float("nan")


def verdict(told: dict[str, list[float]]) -> dict[str, bool] | None:
    """Whether ranking and level hold; None where too little changes."""
    if told["mean measured"][0] < FEW:
        return None
    ranking = told["predicted"][1] > ENOUGH and all(told[f"over {key}"][0] > 0 for key in BESIDE)
    return {"ranking": bool(ranking), "level": bool(1 / LEVEL <= told["level"][0] <= LEVEL)}


def table(results: list[dict[str, Any]], part: str) -> str:
    """The numbers of one target as a table in Markdown."""
    lines = [
        "| model | change | rank correlation | mass | entropy | lead | predicted / measured | ranking | level |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        for name, told in one[part].items():
            judged = told["verdict"] or {"ranking": None, "level": None}
            words = {True: "holds", False: "**fails**", None: "undecided"}
            cells = [one["model"], NAMES.get(name, name), "{:.2f} [{:.2f}, {:.2f}]".format(*told["predicted"])]
            cells += [f"{told[key][0]:.2f}" for key in BESIDE]
            level = "{:.2f} [{:.2f}, {:.2f}]".format(*told["level"])
            cells += [f"{told['mean predicted'][0]:.4f} / {told['mean measured'][0]:.4f} = {level}"]
            lines.append(f"| {' | '.join([*cells, words[judged['ranking']], words[judged['level']]])} |")
    return "\n".join(lines)


def main(arguments: list[str], show: Callable[[str], None] = print) -> None:
    """Study the models, adding each to the file when it is done; a model that is there already is not studied again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--judged-only", action="store_true", help="leave out what is reported and not judged")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    results = json.loads(args.out.read_text("utf-8")) if args.out.is_file() else []
    for model in args.models:
        if all(one["model"] != Path(model).name for one in results):
            results.append(study(model, args.texts, () if args.judged_only else EVERY))
            args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for part in ("of queries and keys", "of every matrix"):
        show(f"\n{part.capitalize()}:\n\n{table(results, part)}")


if __name__ == "__main__":
    main(sys.argv[1:])
