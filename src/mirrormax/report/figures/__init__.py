"""Figures, drawn from saved results alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from mirrormax._files import load_arrays
from mirrormax.experiments.contract import Arrays
from mirrormax.report.figures import examples, joint, models, paths, studies, theorems
from mirrormax.report.maps import write_fig9_page
from mirrormax.report.style import house_style, save

FIGURES: dict[str, Callable[[Arrays], Figure]] = {
    "fig1": theorems.fig1,
    "fig2": examples.fig2,
    "fig3": examples.fig3,
    "fig4": paths.fig4,
    "fig5": paths.fig5,
    "fig6": joint.fig6,
    "fig7": joint.fig7,
    "table1": models.table1,
    "fig8": models.fig8,
    "fig9": models.fig9,
    "vit": models.vit,
    "thm1": theorems.thm1,
    "thm4": theorems.thm4,
    "thm5": theorems.thm5,
    "sparsity": studies.sparsity,
    "step_size": studies.step_size,
}


def draw(name: str, folder: Path) -> list[Path]:
    """Draw the figure of one experiment from its ``data.npz``, beside it, as SVG and PNG."""
    if name == "fig9":
        write_fig9_page(folder)
    with house_style():
        return save(FIGURES[name](load_arrays(folder / "data.npz")), folder, name)
