"""The one-layer attention model: losses, exact gradients, and which tokens are optimal."""

# A name imported as itself is for other rooms, and not part of the face.
from mirrormax.attention.classes import (
    Labelled,
    OptimalAttention,
    class_value_gradient,
    class_weight_gradient,
    effective_scores,
    labelled,
    optimal_attention,
    outputs_of,
    predict_classes,
    signed,
)
from mirrormax.attention.gradients import (
    ClassState,
    Saturated,
    ScaledGradient,
    class_state,
    gradient,
    saturated,
    scaled_gradient,
    scaled_readout_gradient,
    weight_gradient,
)
from mirrormax.attention.losses import CORRELATION, EXPONENTIAL, LOGISTIC, LOSSES, Loss, as_loss
from mirrormax.attention.model import Attention, attend, attention_weights, logits, predict, risk
from mirrormax.attention.tokens import (
    SUPPORT_TOLERANCE,
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
