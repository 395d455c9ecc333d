"""The one-layer attention model: losses, exact gradients, and which tokens are optimal."""

# A name imported as itself is for other rooms, and not part of the face.
from mirrormax.attention.classes import Labelled as Labelled
from mirrormax.attention.classes import (
    OptimalAttention,
    effective_scores,
    optimal_attention,
    predict_classes,
)
from mirrormax.attention.classes import class_value_gradient as class_value_gradient
from mirrormax.attention.classes import class_weight_gradient as class_weight_gradient
from mirrormax.attention.classes import labelled as labelled
from mirrormax.attention.classes import outputs_of as outputs_of
from mirrormax.attention.classes import signed as signed
from mirrormax.attention.gradients import ClassState as ClassState
from mirrormax.attention.gradients import Saturated as Saturated
from mirrormax.attention.gradients import ScaledGradient, gradient, scaled_gradient, scaled_readout_gradient
from mirrormax.attention.gradients import class_state as class_state
from mirrormax.attention.gradients import saturated as saturated
from mirrormax.attention.gradients import weight_gradient as weight_gradient
from mirrormax.attention.losses import CORRELATION, EXPONENTIAL, LOGISTIC, Loss, as_loss
from mirrormax.attention.losses import LOSSES as LOSSES
from mirrormax.attention.model import Attention, FactoredAttention, attend, attention_weights, logits, predict, risk
from mirrormax.attention.tokens import SUPPORT_TOLERANCE as SUPPORT_TOLERANCE
from mirrormax.attention.tokens import (
    LocalOptimality,
    OptimalTokens,
    is_locally_optimal,
    leads,
    optimal_tokens,
    selected_tokens,
    support_tokens,
    token_scores,
)

__all__ = [
    "CORRELATION",
    "EXPONENTIAL",
    "LOGISTIC",
    "Attention",
    "FactoredAttention",
    "LocalOptimality",
    "Loss",
    "OptimalAttention",
    "OptimalTokens",
    "ScaledGradient",
    "as_loss",
    "attend",
    "attention_weights",
    "effective_scores",
    "gradient",
    "is_locally_optimal",
    "leads",
    "logits",
    "optimal_attention",
    "optimal_tokens",
    "predict",
    "predict_classes",
    "risk",
    "scaled_gradient",
    "scaled_readout_gradient",
    "selected_tokens",
    "support_tokens",
    "token_scores",
]
