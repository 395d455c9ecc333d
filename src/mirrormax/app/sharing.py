"""What research takes away from the Geometry page: many seeds at once, and Python that shows the same again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

import mirrormax
from mirrormax.app.geometry import FRAMES, away, locally_optimal, plain_list, simulated, solve
from mirrormax.app.question import RULES, STARTS, Problems, Question
from mirrormax.problem import Problem

MOST_SEEDS = 40


def batch(problems: Problems, question: Question, seeds: int, backend: str) -> dict[str, Any]:
    """Training from ``seeds`` seeds: of the random problem, or of the start where the problem is given.

    The quartiles of the divergence from each one's own solution over those that have one, and how many do, are locally
    optimal, and have turned within 1e-3.
    """
    named = json.loads(question.named)
    random = named["problem"] == "sphere"
    if not random and question.start == "zero":
        raise ValueError("seeds change nothing here: the problem is given and training starts at zero.")
    first = int(named["seed"]) if random else 0
    drawn = [
        question.moved(problems.named({**named, "seed": seed} if random else named))
        for seed in range(first, first + seeds)
    ]
    d = drawn[0].X.shape[-1]
    parts: dict[str, Any] = {
        name: np.stack([getattr(problem, name) for problem in drawn]) for name in ("X", "y", "z", "v")
    }
    mask = drawn[0].mask
    every = Problem(**parts, mask=None if mask is None else np.broadcast_to(mask, (seeds, *np.shape(mask))))
    W0 = np.stack([STARTS[question.start](d, 0 if random else seed) for seed in range(seeds)])
    run = simulated(every, question, question.p, W0, FRAMES, backend)
    norm = question.norm(question.p)
    curves, optimal = [], 0
    for k, problem in enumerate(drawn):
        solution = solve(problem, run.alpha[k], norm)
        if solution is None:
            continue
        curves.append(away(problem, run.W[:, k], run.alpha[k], solution, norm))
        optimal += locally_optimal(problem, None if run.v is None else run.v[:, k], run.alpha[k], solution)
    quartiles = np.percentile(curves, [25, 50, 75], axis=0) if curves else np.full((3, len(run.steps)), np.nan)
    return {
        "seeds": [first, first + seeds - 1],
        "of": "problem" if random else "start",
        "steps": run.steps.tolist(),
        "quartiles": plain_list(quartiles),
        "separable": len(curves),
        "locally_optimal": optimal,
        "turned": int(sum(curve[-1] < 1e-3 for curve in curves)),
        "count": seeds,
    }


def snippet(problem: Problem, question: Question) -> str:
    """Python that trains, solves and prints what the page shows for this question.

    An uploaded file is read from ``problem.npz``, which the page exports.
    """
    named = json.loads(question.named)
    made = {
        "example1": "mm.data.example1()",
        "example2": "mm.data.example2()",
        "sphere": f"mm.data.sphere_problem(seed={named['seed']}, n={named['n']}, T={named['T']}, d={named['d']})",
        "file": 'mm.load_problem("problem.npz")',
    }[named["problem"]]
    moves = []
    if named["problem"] != "file" and (question.x or question.z):
        moves += ["X, z = problem.X.copy(), problem.z.copy()"]
        moves += [f"X{list(place)} += {list(by)}" for place, by in question.x]
        moves += [f"z{list(place)} += {list(by)}" for place, by in question.z]
        moves += ["problem = mm.Problem(X=X, y=problem.y, z=z, v=problem.v)"]
    d = problem.X.shape[-1]
    start = {"zero": f"np.zeros(({d}, {d}))", "random": f"np.random.default_rng(0).standard_normal(({d}, {d}))"}
    options = f"lr={question.lr!r}, steps={question.steps}, W0=W0"
    options += "" if problem.v.any() else ", train_readout=True"
    head = "problem.v" if problem.v.any() else "run.v[-1]"
    best = f"mm.optimal_tokens(X=problem.X, y=problem.y, v={head}, mask=problem.mask).alpha"
    alpha = {"trained": "run.alpha  # the tokens that training selected", "optimal": best}
    chosen = alpha[question.alpha] if isinstance(question.alpha, str) else f"np.array({list(question.alpha)})"
    lines = [
        f"# What the explorer of mirrormax {mirrormax.__version__} showed.",
        "import numpy as np",
        "",
        "import mirrormax as mm",
        "",
        f"problem = {made}",
        *moves,
        f"W0 = {start[question.start]}",
        "runs, solutions = {}, {}",
        "ways = {  # what trains, and the norm in which it solves",
        *(f"    {way}," for way in _ways(question)),
        "}",
        "for name, (training, norm) in ways.items():",
        f"    run = mm.simulate(problem, **training, {options}, record={FRAMES})",
        f"    alpha = {chosen}",
        "    solution = mm.att_svm(problem, alpha, **norm, throw=False)",
        "    runs[name], solutions[name] = run, solution",
        '    print(f"{name}: tokens {alpha + 1}, attention on them {run.mass[-1]:.4f}, {solution}")',
        '    if solution.optimal and "p" in norm:',
        "        D = mm.directional_divergence(solution.W, run.W[-1], **norm)",
        '        print(f"    margin {solution.margin:.6g}, divergence after {run.steps[-1]} steps {D:.3g}")',
    ]
    return "\n".join(lines) + "\n"


def _ways(question: Question) -> list[str]:
    """Every training of a view: its name, what ``simulate`` is told of it, and the norm of its SVM."""
    exponents, ways = (question.p, *question.others), []
    if question.rule in RULES:
        rule, norm = RULES[question.rule]
        written = repr(rule) if isinstance(rule, str) else f"mm.dynamics.{rule!r}"
        exponents, ways = question.others, [f"{question.rule!r}: ({{'rule': {written}}}, {{'norm': {norm!r}}})"]
    beta, of_p = f"mm.geometry.Hypentropy({question.beta!r})", replace(question, rule="mirror")
    for p in exponents:
        mirror = {"Lp": f"{p!r}", "SquaredLp": f"mm.geometry.SquaredLp({p!r})", "Hypentropy": beta}[question.potential]
        ways.append(f"{p!r}: ({{'p': {mirror}}}, {{'p': {of_p.norm(p)!r}}})")
    return ways
