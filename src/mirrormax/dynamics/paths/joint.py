"""The joint regularisation path of attention weights and head (Theorem 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mirrormax._checks import integer
from mirrormax.attention import LOGISTIC
from mirrormax.dynamics.paths.attention import (
    Local,
    RegularizationPath,
    Search,
    Start,
    arrays_of,
    check_radii,
    exponent_of,
    path_of,
)
from mirrormax.dynamics.paths.minimisation import (
    TRIED,
    Array,
    Excess,
    HeadLoss,
    Selection,
    Selections,
    attended,
    lowest,
    minimize_on_sphere,
    norm,
    on_sphere,
    residual,
)
from mirrormax.geometry import Lp
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import lp_svm

ROUNDS = 30
TOLERANCE = 1e-9


@gathers_problem("X", "y", "z")
def joint_regularization_path(
    problem: Problem,
    *,
    p: float | Lp = 2,
    radii: ArrayLike = (1.0, 10.0, 100.0, 1000.0),
    readout_radii: ArrayLike | None = None,
    random_starts: int = 4,
    seed: int = 0,
) -> RegularizationPath:
    """ℓp-JointRP: (v, W) = argmin L(v, W) over ‖W‖_p ≤ R and ‖v‖_p ≤ r, with the logistic loss.

    Head and weights are minimised in turn, each on its sphere, until both are first-order optimal: given W the
    risk is convex in v, and given v it is that of :func:`regularization_path`. Starts are the pair of the radii before,
    random heads, and pairs (ℓp-SVM, attention SVM) of selections α: of all where there are at most 256; else of the α
    that cannot be bettered one step at a time (a head chooses the tokens it scores best, the tokens their max-margin
    head, and so on), reached from random heads, and of those that differ from these, or from the best pair found, in
    one token (the 64 nearest in score); of these the 4 of lowest risk. The 2 starts that are lowest after 40 iterations
    are followed to the end. Theorem 5's limit is the pair of the α with the largest label margin.

    How the two radii grow matters. A sample i with a label margin of m_i pulls on W with the weight e^{−r m_i},
    and a token at distance R from being selected with e^{−R}: if r grows like R and some sample is no support
    vector of the head (Assumption B then fails), W(R)/R has another limit than the attention SVM. With
    r/R → 0, the default r = √R, the weights of samples do not matter in the end.

    Arguments are those of :func:`regularization_path`, but for the readout, which the problem need not have; ``radii``
    are for W alone, those for v are ``readout_radii``, the square roots if not given, and ``random_starts`` is how many
    random heads to start from, at least one.
    """
    sizes, exponent = check_radii("radii", radii), exponent_of(p)
    head_sizes = np.sqrt(sizes) if readout_radii is None else check_radii("readout_radii", readout_radii)
    if len(head_sizes) != len(sizes):
        raise ValueError(f"readout_radii has {len(head_sizes)} numbers and radii {len(sizes)}; give as many of each.")
    random_starts = integer("random_starts", random_starts, at_least=1)
    rng = np.random.default_rng(seed)
    searches = [_Joint(X, y, z, mask, exponent) for X, y, z, mask in arrays_of(problem, "X", "y", "z")]
    radii_of_both = list(zip(sizes.tolist(), head_sizes.tolist(), strict=True))
    paths = [list(search.follow(radii_of_both, search.random_pairs(random_starts, rng), dict)) for search in searches]
    alpha = [path[-1].alpha for path in paths]
    return path_of(paths, alpha, problem, exponent, radii=sizes, readout_radii=head_sizes)


class _Joint(Search):
    """A readout and weights, minimised in turn."""

    def __init__(self, X: Array, y: Array, z: Array, mask: Any, p: float) -> None:
        self.X, self.y, self.z, self.mask, self.p = X, y, z, mask, p
        self.selections = Selections(X, z, mask, p)
        self.heads: dict[Selection, Array | None] = {}

    def minimize(self, start: Start, R: Any, *, look: bool = False) -> Local:
        """Head and weights in turn, until both are first-order optimal; once, for a first look."""
        (v, W), (R, r) = start, R
        W = R / norm(W, self.p) * W
        head = minimize_on_sphere(self._head_loss(W), v, r, self.p, look=look)
        for _ in range(1 if look else ROUNDS):
            W = minimize_on_sphere(self._excess(head.w), W, R, self.p, look=look).w
            head = minimize_on_sphere(self._head_loss(W), head.w, r, self.p, look=look)
            after = self._excess(head.w)
            left = residual(after(W)[1], W, R, self.p)
            if max(left, head.residual) <= TOLERANCE:
                break
        return Local(W, head.value, left, after.alpha, head.w, head.residual)

    def random_pairs(self, count: int, rng: np.random.Generator) -> dict[str, Start]:
        """Pairs that belong to no selection: random heads with the weights that suit them."""
        d = self.X.shape[-1]
        heads: dict[str, Array] = {f"random {k}": rng.standard_normal((d,)) for k in range(count)}
        for v in heads.values():
            improved = self._improve(v)
            self.around(self._excess(improved).alpha.tolist(), improved)
        return {name: (v, on_sphere(-self._excess(v)(np.zeros((d, d)))[1], 1.0, self.p)) for name, v in heads.items()}

    def around(self, alpha: Sequence[int], v: Any) -> None:
        """The scores being those of v; and solve for their heads."""
        self.selections.around(alpha, self.y[:, None] * (self.X @ v))
        new = [alpha for alpha, _ in self.selections.solved() if alpha not in self.heads]
        if new:
            solution = lp_svm(self.X[np.arange(len(self.y)), np.array(new)], self.y, p=self.p, throw=False)
            solved = zip(new, np.asarray(solution.optimal), solution.v, strict=True)
            self.heads |= {alpha: v if optimal else None for alpha, optimal, v in solved}

    def chosen(self, R: Any) -> dict[str, Start]:
        R, r = R
        pairs: dict[str, Start] = {str(alpha): (self.heads[alpha], W) for alpha, W in self.selections.solved()}
        pairs = {name: pair for name, pair in pairs.items() if pair[0] is not None}
        values = {
            name: self._head_loss(R / norm(W, self.p) * W)(r / norm(v, self.p) * v)[0] for name, (v, W) in pairs.items()
        }
        return {name: pairs[name] for name in lowest(values, TRIED)}

    def _improve(self, v: Array) -> Array:
        """A head whose best tokens have no better max-margin head than itself, if they have one at all."""
        chosen: tuple[int, ...] | None = None
        while True:
            alpha = self._excess(v).alpha
            if tuple(alpha.tolist()) == chosen:
                return v
            chosen = tuple(alpha.tolist())
            solution = lp_svm(self.X[np.arange(len(alpha)), alpha], self.y, p=self.p, throw=False)
            if not solution.optimal:
                return v
            v = solution.v

    def _excess(self, v: Array) -> Excess:
        return Excess(self.X, self.y, self.z, v, self.mask, LOGISTIC)

    def _head_loss(self, W: Array) -> HeadLoss:
        return HeadLoss(attended(self.X, self.z, W, self.mask), self.y)
