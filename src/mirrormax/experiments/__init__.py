"""Experiments, one module each; :mod:`mirrormax.experiments.contract` says what such a module has.

``EXPERIMENTS`` names them in the order of the report, with the seconds each took in the quick profile on two
cores: what a progress bar needs to tell the time left.
"""

from __future__ import annotations

EXPERIMENTS: dict[str, float] = {
    "fig1": 6,
    "fig2": 1,
    "fig3": 1,
    "fig4": 17,
    "fig5": 5,
    "fig6": 2,
    "fig7": 2,
    "table1": 200,
    "fig8": 5,
    "fig9": 10,
    "vit": 120,
    "thm1": 7,
    "thm4": 15,
    "thm5": 1,
    "sparsity": 5,
    "step_size": 25,
}
