"""What the paper proves, as numbers and checks: constants, cones, step sizes, lemmas along a run, rates.

At the paper's own sizes the theorems' cones are out of reach of any run; the checks say so in words.
"""

from mirrormax.theory.assumption import AssumptionB, estimate_nu
from mirrormax.theory.cones import EmpiricalCone, boundary_starts, empirical_cone, in_cone
from mirrormax.theory.constants import Constants, constants
from mirrormax.theory.diagnosis import Diagnosis, Sign, diagnose
from mirrormax.theory.horizon import horizon_svm
from mirrormax.theory.joint import JointBounds, joint_bounds
from mirrormax.theory.lemmas import LemmaCheck, check_lemma, check_lemmas
from mirrormax.theory.losses import LossCheck, check_loss
from mirrormax.theory.rates import SMALLEST_STEP, RateFit, fit_rate, rate
from mirrormax.theory.step_size import StepSizeCheck, step_size_ok

__all__ = [
    "AssumptionB",
    "Constants",
    "Diagnosis",
    "EmpiricalCone",
    "JointBounds",
    "LemmaCheck",
    "LossCheck",
    "RateFit",
    "Sign",
    "StepSizeCheck",
    "boundary_starts",
    "check_lemma",
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
    "rate",
    "step_size_ok",
]
