"""Max-margin token selection: the ℓp attention SVM and the ℓp SVM, each answer with its certificate."""

from mirrormax.svm.api import att_svm, label_margin, lp_svm
from mirrormax.svm.joint import joint_limit, label_excess
from mirrormax.svm.solution import InfeasibleError, NotSolvedError, Solution

__all__ = [
    "InfeasibleError",
    "NotSolvedError",
    "Solution",
    "att_svm",
    "joint_limit",
    "label_excess",
    "label_margin",
    "lp_svm",
]
