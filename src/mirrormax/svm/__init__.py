"""Max-margin token selection: the ℓp attention SVM and the ℓp SVM, each answer with its certificate."""

from mirrormax.svm.api import att_svm, lp_svm
from mirrormax.svm.graph import (
    GraphSolution,
    PriorityGraph,
    Sample,
    causal_samples,
    check_samples,
    graph_svm,
    luce_strengths,
    priority_graph,
    vocabulary,
)
from mirrormax.svm.joint import joint_limit
from mirrormax.svm.norms import Norm
from mirrormax.svm.readout import class_excess, class_svm, label_excess, label_margin
from mirrormax.svm.solution import InfeasibleError, NotSolvedError, Solution

__all__ = [
    "GraphSolution",
    "InfeasibleError",
    "NotSolvedError",
    "PriorityGraph",
    "Solution",
    "att_svm",
    "causal_samples",
    "class_excess",
    "class_svm",
    "graph_svm",
    "joint_limit",
    "label_excess",
    "label_margin",
    "lp_svm",
    "luce_strengths",
    "priority_graph",
]
