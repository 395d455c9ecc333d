"""Weights pruned from a trained model, undoable, and the files that keep the zeros small."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.pruning.files import load_sparse, save_sparse

    # For other rooms; not part of the face.
    from mirrormax.pruning.inputs import answer as answer
    from mirrormax.pruning.places import Pruned
    from mirrormax.pruning.pruner import check_choices as check_choices
    from mirrormax.pruning.pruner import prune
    from mirrormax.pruning.scoring import Scores, margin_scores, scores
    from mirrormax.pruning.scoring import next_token_losses as next_token_losses

REVISION = 3
"""Raised when the same pruning would leave other weights or come to another quality."""

__all__ = [
    "Pruned",
    "Scores",
    "load_sparse",
    "margin_scores",
    "prune",
    "save_sparse",
    "scores",
]

__getattr__, __dir__ = lazy(__name__)
