"""For ``torch.hub.load``: the optimizers and ``prune``, without installing the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from mirrormax import MirrorAdamW, MirrorDescent, prune

dependencies = ["torch", "numpy", "scipy"]


def mirror_adamw(*args, **kwargs):
    """:class:`mirrormax.MirrorAdamW` with these arguments."""
    return MirrorAdamW(*args, **kwargs)


def mirror_descent(*args, **kwargs):
    """:class:`mirrormax.MirrorDescent` with these arguments."""
    return MirrorDescent(*args, **kwargs)


def pruned(*args, **kwargs):
    """What :func:`mirrormax.prune` returns for these arguments."""
    return prune(*args, **kwargs)
