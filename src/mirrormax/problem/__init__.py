"""The token-selection problem that everything else takes, and its one validator.

    X (..., n, T, d)  tokens          y (..., n)     labels ±1         v (..., d)  readout
    z (..., n, d)     queries         alpha (..., n) chosen tokens     W (..., d, d), or K, Q (..., d, m)
    mask (..., n, T)  True where a token is present; what stands elsewhere in X is never read

Leading dimensions are a batch and broadcast. Functions of a problem take a :class:`Problem` or its arrays, always
in the order X, y, z, v, W, alpha, leaving out what they have no use for; all else is given by name.
"""

from mirrormax.problem.checks import (
    HEAD_SHAPES,
    SHAPES,
    broadcast,
    check,
    check_classes,
    check_points,
    check_queries,
    check_shapes,
    joined,
    sample_name,
)
from mirrormax.problem.fields import Problem, gathers_problem, takes_problem
from mirrormax.problem.tokens import (
    Relative,
    blank_padding,
    common_type,
    first_true,
    highest_scores,
    masked_logits,
    relative_to,
    token_scores,
    values,
)

__all__ = ["Problem"]
