"""What the paper proves, as numbers and checks: constants, cones, step sizes, lemmas along a run, rates.

At the paper's own sizes the theorems' cones are out of reach of any run; the checks say so in words.
"""

from mirrormax.theory.assumption import AssumptionB, estimate_nu
from mirrormax.theory.cones import (
    AttentionSplit,
    EmpiricalCone,
    attention_split,
    boundary_starts,
    empirical_cone,
    in_cone,
)
from mirrormax.theory.constants import Constants, constants
from mirrormax.theory.diagnosis import Diagnosis, Sign, diagnose
from mirrormax.theory.horizon import HorizonSVM, horizon_svm
from mirrormax.theory.joint import JointBounds, joint_bounds
from mirrormax.theory.lemmas import (
    LemmaCheck,
    check_lemma_9,
    check_lemma_10,
    check_lemma_11,
    check_lemma_12,
    check_lemma_13,
    check_lemma_14,
    check_lemma_16,
    check_lemma_17,
    check_lemma_18,
    check_lemma_19,
    check_lemmas,
)
from mirrormax.theory.losses import LossCheck, check_loss

# For other rooms; not part of the face.
from mirrormax.theory.rates import SMALLEST_STEP as SMALLEST_STEP
from mirrormax.theory.rates import RateFit, fit_rate, rate
from mirrormax.theory.step_size import StepSizeCheck, largest_step, step_size_ok

__all__ = [
    "AssumptionB",
    "AttentionSplit",
    "Constants",
    "Diagnosis",
    "EmpiricalCone",
    "HorizonSVM",
    "JointBounds",
    "LemmaCheck",
    "LossCheck",
    "RateFit",
    "Sign",
    "StepSizeCheck",
    "attention_split",
    "boundary_starts",
    "check_lemma_9",
    "check_lemma_10",
    "check_lemma_11",
    "check_lemma_12",
    "check_lemma_13",
    "check_lemma_14",
    "check_lemma_16",
    "check_lemma_17",
    "check_lemma_18",
    "check_lemma_19",
    "check_lemmas",
    "check_loss",
    "constants",
    "diagnose",
    "empirical_cone",
    "estimate_nu",
    "fit_rate",
    "horizon_svm",
    "in_cone",
    "joint_bounds",
    "largest_step",
    "rate",
    "step_size_ok",
]
