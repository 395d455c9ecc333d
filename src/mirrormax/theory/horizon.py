"""The attention SVM of a potential that is no power of a norm: that of the norm which it looks like from afar.

Mirror descent moves u = ∇ψ(W) by −η∇L, and where attention has settled ∇L = −Σ c_it e^{−⟨a_it, W⟩} a_it with
a_it = (x_iα − x_it)z_iᵀ and c_it > 0. So u = Aᵀλ with λ ≥ 0, and λ_it grows only along the rows of the smallest leads,
while ‖W‖ = t grows without bound. With V = W/t and any h(t) > 0 that is

    ∇_V [ψ(tV)/h(t)] = Aᵀλ·t/h(t),    λ_it beside the others only where ⟨a_it, V⟩ is smallest,

the optimality condition of min ψ_∞(V) s.t. AV ≥ 1 (at some scale) if ψ(tV)/h(t) → ψ_∞(V), the *horizon function*. For

    Lp(p)         h = t^p       ψ_∞ = ‖V‖_p^p/p          ElasticNet    h = t²        ψ_∞ = ‖V‖₂²/(2δ)
    SquaredLp(p)  h = t²        ψ_∞ = ‖V‖_p²/2           Hypentropy    h = t log t   ψ_∞ = ‖V‖₁

it is a power of an ℓr norm, and the limit the ℓr attention SVM. Of Hypentropy that is a linear program, and it is
reached only like 1/log(t/β). For linear classifiers and gradient flow this is a theorem where the solution is unique
(Pesme, Dragomir, Flammarion: Implicit bias of mirror flow on separable data, 2024); for attention it is the derivation
above, and ``mirrormax reproduce horizon``.
"""

from __future__ import annotations

from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import Solution, att_svm
from mirrormax.theory.setting import chosen_tokens, one_problem


@gathers_problem("X", "z")
def horizon_svm(problem: Problem, alpha: ArrayLike | Tensor | None = None, *, potential: Potential) -> Solution:
    """The attention SVM that weights turn to under mirror descent with ``potential``, in the ℓr norm of its horizon.

    Of r = 1 its W is one vertex of the solutions, of which there may be several.

    Args:
        problem: one problem, or its arrays X and z.
        alpha: the chosen tokens ``(n,)``; those of the problem if not given.
        potential: one whose ``horizon`` is known.

    >>> from mirrormax.data import example1
    >>> from mirrormax.geometry import Hypentropy
    >>> horizon_svm(example1(), potential=Hypentropy()).W.round(3) + 0.0
    array([[0.04, 0.  ],
           [0.  , 0.  ]])
    """
    r = potential.horizon
    if r is None:
        raise ValueError(f"the horizon of {potential!r} is not known; define the property horizon of its class.")
    problem = one_problem(problem)
    chosen = chosen_tokens(problem, alpha)
    return att_svm(problem, chosen, p=r) if r > 1 else att_svm(problem, chosen, norm="l1")
