"""The sweeps over text classifiers that Table 1, Fig 8 and Fig 9 share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mirrormax.experiments._sweeps import Contender, Finished, Sweep, data_of, run_sweep
from mirrormax.training import PROFILES as TRAINING
from mirrormax.training import SentimentTraining, with_published_step

if TYPE_CHECKING:
    from mirrormax.experiments._work import Work

PAPER_SIZES = {"3 blocks": 3, "4 blocks": 4, "6 blocks": 6}
IMDB = ("imdb", "aclImdb")


@dataclass(frozen=True)
class Config:
    """One sweep for each size of model, by the name of the size."""

    sizes: tuple[tuple[str, Sweep], ...]


ONE_BLOCK = cast(SentimentTraining, replace(TRAINING["sentiment"]["small"], warmup=2.0))
REVIEWS = Sweep(
    ONE_BLOCK,
    (
        Contender("md", 1.1, (0.1, 0.3, 0.9), 5),
        Contender("md", 1.5, (0.3, 0.9, 2.7), 5),
        Contender("md", 2.0, (0.3, 0.9, 2.7), 5),
        Contender("md", 3.0, (0.1, 0.3, 0.9), 5),
        Contender("adamw", 2.0, (3e-4, 1e-3, 3e-3), 5),
    ),
    tuning_epochs=12,
)
ON_IMDB = Sweep(
    replace(ONE_BLOCK, data="imdb", warmup=3.0, epochs=14),
    (
        Contender("md", 1.1, (0.1, 0.3, 0.9), 3),
        Contender("md", 2.0, (0.3, 0.9, 2.7), 3),
        Contender("md", 3.0, (0.1, 0.3, 0.9), 3),
        Contender("adamw", 2.0, (3e-4, 1e-3, 3e-3), 3),
    ),
    tuning_epochs=7,
)
QUICK = Sweep(
    replace(ONE_BLOCK, epochs=12),
    (
        Contender("md", 1.1, (0.3,), 2),
        Contender("md", 2.0, (0.9,), 2),
        Contender("md", 3.0, (0.3,), 2),
        Contender("adamw", 2.0, (1e-3,), 2),
    ),
    tuning_epochs=12,
)
PAPER = cast(SentimentTraining, TRAINING["sentiment"]["paper"])


def _as_in_the_paper(size: str) -> Sweep:
    """The authors' model and step sizes, on ten seeds; as theirs, it holds nothing out and tries no other step."""
    blocks = PAPER_SIZES[size]
    base = replace(PAPER, blocks=blocks, heads=blocks)
    steps = {p: with_published_step(replace(base, p=p)).lr for p in (1.1, 2.0, 3.0)}
    rivals = tuple(Contender("md", p, (lr,), 10) for p, lr in steps.items() if lr is not None)
    return Sweep(base, rivals, tuning_epochs=base.epochs)


PROFILES = {
    "quick": Config((("1 block", QUICK),)),
    "small": Config((("1 block", REVIEWS),)),
    "paper": Config(tuple((size, _as_in_the_paper(size)) for size in PAPER_SIZES)),
}
OF_IMDB = {
    REVIEWS: ON_IMDB,
    QUICK: replace(QUICK, base=replace(QUICK.base, data="imdb", train_limit=5000, warmup=1.0, epochs=4)),
}


def on_data(config: Config, data_dir: Path) -> Config:
    """The same on IMDb if the folder holds it; else the embedded reviews stay."""
    if not any((data_dir / name).is_dir() for name in IMDB):
        return config
    return Config(tuple((name, OF_IMDB.get(sweep, sweep)) for name, sweep in config.sizes))


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read."""
    return data_of([sweep for _, sweep in config.sizes], data_dir)


def run_sizes(config: Config, work: Work, *, last_only: bool = False) -> list[tuple[str, list[Finished]]]:
    """The sweeps of all sizes, or of the largest, which comes last."""
    chosen = config.sizes[-1:] if last_only else config.sizes
    return [(name, run_sweep(sweep, work, share=1 / len(chosen))) for name, sweep in chosen]
