"""Make the two checkpoints that come with the explorer: ``python -m mirrormax.app.ship RUN NAME``.

Trained runs become small: half-precision weights, which are plenty for looking at attention.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirrormax.app.checkpoints import SHIPPED
from mirrormax.nets import load_model, save_model


def ship(run: Path, name: str) -> Path:
    """Copy the model of a training run to where the explorer finds it."""
    checkpoint = load_model(run / "model")
    return save_model(
        SHIPPED / name, checkpoint.model.half(), checkpoint.classes, checkpoint.tokenizer, checkpoint.training
    )


if __name__ == "__main__":
    ship(Path(sys.argv[1]), sys.argv[2])
