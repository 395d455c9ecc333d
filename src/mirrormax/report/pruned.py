"""A pruned model as a folder: the checkpoint, its quality over the share pruned, and what that saves."""

from __future__ import annotations

from typing import Any

from mirrormax._drawing import COLOURS, house_style, row_of_axes, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import Estimate, Loaded, PruningReport, save_pruned, stored_once
from mirrormax.nets import SPARSE_WEIGHTS

PRUNED_KIND = "pruned model"


def write_pruned(folder: ResultFolder, report: PruningReport, loaded: Loaded, name: str) -> None:
    """The pruned model, which can be audited again, the curve as a picture, numbers, and what is to be said."""
    save_pruned(folder.writing, loaded)
    kept = (folder.path / SPARSE_WEIGHTS).stat().st_size
    dense = sum(tensor.numel() * tensor.element_size() for tensor in stored_once(loaded.model).values())
    with house_style():
        fig, (axes,) = row_of_axes(1, width=6.4, height=4.0)
        _curve(axes, report.quality, f"by {report.by}", "o", COLOURS[0])
        if report.magnitude:
            _curve(axes, report.magnitude, "by magnitude", "^", COLOURS[2])
        _curve(axes, [(report.share, report.pruned)], "the saved checkpoint", "s", COLOURS[1])
        if report.chance is not None:
            axes.axhline(report.chance, color="0.5", linestyle="--", linewidth=1, label="always the commonest label")
            low = min(estimate.low for _, estimate in [*report.quality, *report.magnitude])
            axes.set_ylim(min(low, report.chance) - 0.05, 1.02)
        axes.set(xlabel="weights pruned, %", ylabel=f"{report.measure}, 95 % intervals", xlim=(-2, 100))
        axes.set_title(f"{name}: {report.finding}", fontsize=10, wrap=True)
        axes.legend()
        save(fig, folder, "pruning")
    folder.save_json(
        "pruning.json",
        {
            "measure": report.measure,
            "by": report.by,
            "rows": report.rows,
            "chance": report.chance,
            "quality": _points(report.quality),
            "by_magnitude": _points(report.magnitude),
            "share": report.share,
            "pruned": report.pruned.to_dict(),
            "change": report.change.to_dict(),
            "tensors": {name: {"zero": zero, "size": size} for name, (zero, size) in report.tensors.items()},
            "bytes": {"dense": dense, "sparse": kept},
            "sentences": report.sentences(dense, kept),
        },
    )


def _points(points: list[tuple[float, Estimate]]) -> list[dict[str, Any]]:
    return [{"share": share, "quality": at.mean, "low": at.low, "high": at.high} for share, at in points]


def _curve(axes: Any, points: list[tuple[float, Estimate]], label: str, marker: str, colour: str) -> None:
    rows = [(100 * share, at.mean, at.mean - at.low, at.high - at.mean) for share, at in points]
    shares, means, *reach = zip(*rows, strict=True)
    axes.errorbar(shares, means, reach, marker=marker, color=colour, capsize=3, label=label)
