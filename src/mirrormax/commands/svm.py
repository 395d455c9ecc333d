"""``mirrormax svm PROBLEM.npz --p 1.75 --out SOL.npz``: one problem file to one solution file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mirrormax
from mirrormax._files import save_arrays
from mirrormax.commands._shared import check_out_file

DONE, NO_SOLUTION = 0, 3
RESULTS = ("margin", "gap", "violation", "support", "dual", "status", "iterations")
SETTINGS = ("p", "alpha", "norm")
NORMS = ("lp", "l1", "linf", "spectral", "nuclear", "rows-max", "rows-sum", "k-support")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 3 means no solution: if no weights meet every margin, SOL.npz has the proof (dual); if the solver "
        "stopped above --tol, nothing is written."
    )
    add = parser.add_argument
    add("problem", type=str, metavar="PROBLEM.npz", help="arrays X (n,T,d), y (n,), z (n,d), v (d,), maybe alpha, mask")
    add("--p", type=float, help="the norm ‖W‖_p to minimise, p > 1 (default: 2)")
    add(
        "--alpha",
        type=str,
        metavar="FILE|from-scores",
        help="the chosen tokens: an .npy file, an .npz file with an array alpha, or the tokens of highest score "
        "(default: those in the problem file, else from-scores)",
    )
    add("--C", type=float, help="soft margin: the price of one unit of missing margin")
    add("--norm", choices=NORMS, default="lp", metavar="NORM", help=f"in the place of ‖W‖_p: {', '.join(NORMS)}")
    add("--k", type=int, help="of --norm k-support: entries of its extreme points")
    add("--tol", type=float, help="relative duality gap to reach (default: 1e-9, or what the norm allows)")
    add("--out", type=str, required=True, metavar="SOL.npz", help="where to write the solution")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Solve the problem in a file and write W, margin, gap, violation, support and dual; 0 done, 3 no solution.

    That there is no solution is an answer, and written: ``dual`` is then the Farkas certificate, W is NaN. A solver
    that stopped above the tolerance has none, and nothing is written.
    """
    check_out_file(Path(args.out), "svm", ("W", *RESULTS, *SETTINGS), (args.problem, args.alpha or args.problem))
    problem = mirrormax.load_problem(args.problem)
    chosen = _chosen(problem, args.alpha)
    options = {name: getattr(args, name) for name in ("C", "k", "tol")}
    solution = mirrormax.att_svm(problem, chosen, p=args.p, norm=args.norm, throw=False, **options)
    if not solution.optimal and not solution.infeasible:
        print(f"{solution.status}; nothing was written to {args.out}.", file=sys.stderr)
        return NO_SOLUTION
    args.p = 2.0 if args.p is None else args.p
    arrays: dict[str, Any] = {"W": solution.W, **{name: getattr(solution, name) for name in RESULTS}}
    settings: dict[str, Any] = dict(zip(SETTINGS, (args.p, chosen, args.norm), strict=True))
    settings |= {name: value for name, value in options.items() if value is not None}
    save_arrays(Path(args.out), **arrays, **settings)
    if solution.infeasible:
        named = ", ".join(str(k) for k, stands in enumerate(solution.samples) if stands)
        print(f"{solution.status}; samples in the certificate: {named}; it was written to {args.out}.", file=sys.stderr)
        return NO_SOLUTION
    if not args.quiet:
        _tell(solution, problem, args)
    return DONE


def _chosen(problem: mirrormax.Problem, alpha: str | None) -> Any:
    if alpha is None and problem.alpha is not None:
        return problem.alpha
    if alpha in (None, "from-scores"):
        return problem.best_tokens()
    path = Path(alpha)
    if path.suffix == ".npy" and path.is_file():
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(
                f"the alpha file {path} cannot be read as an .npy file; write it with numpy.save."
            ) from error
    else:
        arrays = mirrormax.data.read_npz(path, "alpha file")
        if "alpha" not in arrays:
            raise ValueError(f"the alpha file {path} has no array 'alpha'; give it one integer per sample.")
        array = arrays["alpha"]
    try:
        return mirrormax.Problem(X=problem.X, alpha=array, mask=problem.mask).alpha
    except (TypeError, ValueError) as error:
        raise ValueError(f"the alpha file {path} is of no use: {error}") from error


def _tell(solution: mirrormax.svm.Solution, problem: mirrormax.Problem, args: argparse.Namespace) -> None:
    n, T, d = problem.X.shape
    what, size = (f"p = {args.p:g}", "1/‖W‖_p") if args.norm == "lp" else (f"{args.norm} norm", "1/‖W‖")
    soft = "" if args.C is None else f", soft margin C = {args.C:g}"
    print(
        f"attention SVM, {what}{soft}: n = {n}, T = {T}, d = {d}",
        f"  status     {solution.status}",
        f"  margin     {float(solution.margin):.10g}  ({size})",
        f"  gap        {float(solution.gap):.2e}  (relative, proved)",
        f"  violation  {float(solution.violation):.2e}",
        f"  support    {int(solution.support.sum())} active constraints in {int(solution.samples.sum())} samples",
        f"  iterations {int(solution.iterations)}",
        f"  written to {args.out}",
        sep="\n",
    )
