"""Weights pruned from a trained model, undoable, and the files and layers that keep the zeros small."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.pruning.compact import Compressed, SparseLinear, compress, load_sparse, save_sparse
    from mirrormax.pruning.inputs import answer
    from mirrormax.pruning.places import Pruned
    from mirrormax.pruning.pruner import check_choices, prune
    from mirrormax.pruning.scoring import Scores, margin_scores, next_token_losses, scores

REVISION = 4
"""Raised when the same pruning would leave other weights or come to another quality."""

__all__ = [
    "Compressed",
    "Pruned",
    "Scores",
    "SparseLinear",
    "compress",
    "load_sparse",
    "margin_scores",
    "prune",
    "save_sparse",
    "scores",
]

__getattr__, __dir__ = lazy(__name__)
