"""Weights cut out of a trained model, undoable, and the files that keep the zeros small."""

from mirrormax.pruning.cut import Pruned, margin_scores, prune
from mirrormax.pruning.files import load_sparse, save_sparse

# For other rooms; not part of the face.
from mirrormax.pruning.margins import answer as answer

__all__ = ["Pruned", "load_sparse", "margin_scores", "prune", "save_sparse"]
