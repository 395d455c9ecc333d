"""A model that was cut, as a folder: the checkpoint, its quality over the share cut, and what that saves."""

from __future__ import annotations

from mirrormax._drawing import COLOURS, grid_of_axes, house_style, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import CutReport, Loaded, save_cut, stored_once
from mirrormax.nets import SPARSE_WEIGHTS

CUT_KIND = "pruned model"


def write_cut(folder: ResultFolder, found: CutReport, loaded: Loaded, title: str) -> list[str]:
    """The cut model, which can be audited again, the curve as a picture and numbers; returns what is to be said."""
    save_cut(folder.writing, loaded)
    kept = (folder.path / SPARSE_WEIGHTS).stat().st_size
    whole = sum(tensor.numel() * tensor.element_size() for tensor in stored_once(loaded.model).values())
    told = found.sentences(whole, kept)
    with house_style():
        fig, ((axes,),) = grid_of_axes(1, 1, width=5.5, height=3.4)
        shares, values = zip(*found.quality, strict=True)
        axes.plot([100 * one for one in shares], values, marker="o", color=COLOURS[0], label=f"by {found.by}")
        if found.beside:
            shares, values = zip(*found.beside, strict=True)
            axes.plot([100 * one for one in shares], values, marker="^", color=COLOURS[2], label="by magnitude")
        axes.plot([100 * found.share], [found.cut], marker="s", color=COLOURS[1], label="the saved checkpoint")
        axes.set(xlabel="weights in scope cut, %", ylabel=found.measure, title=title)
        axes.legend()
        save(fig, folder, "pruning")
    folder.save_json(
        "pruning.json",
        {
            "measure": found.measure,
            "by": found.by,
            "quality": [{"share": one, "quality": value} for one, value in found.quality],
            "by_magnitude": [{"share": one, "quality": value} for one, value in found.beside],
            "share": found.share,
            "cut": found.cut,
            "tensors": {name: {"zero": zero, "size": size} for name, (zero, size) in found.tensors.items()},
            "bytes": {"whole": whole, "sparse": kept},
            "sentences": told,
        },
    )
    return told
