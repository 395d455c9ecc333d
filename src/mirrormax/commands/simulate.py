"""``mirrormax simulate PROBLEM.npz --p 1.75 --lr 0.1 --steps 1500 --out RUN.npz``."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path

import mirrormax
from mirrormax.commands._shared import check_out_file, progress

QUICK, LARGEST_P = 100_000, 20.0
"""Numbers in X, and p, up to which the diagnosis looks at local optimality."""
NONFINITE = 3
"""Exit code of a run that a number which is not finite has ended."""
WRITTEN = ("steps", "W", "loss", "norm", "mass", "alpha", "status", "updates", "config")
"""Arrays by which an earlier run is told from other files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "problem",
        type=str,
        metavar="PROBLEM.npz",
        help="arrays X (n,T,d), y (n,), z (n,d), v (d,), maybe mask; v starts a head",
    )
    add("--p", type=float, default=2.0, help="the potential (1/p)‖W‖_p^p, p > 1")
    add("--lr", type=float, default=0.1, help="step size")
    add("--steps", type=int, default=1500, help="updates to make")
    add(
        "--normalize",
        choices=("none", "tensor", "running"),
        default="tensor",
        help="divide each gradient by its dual norm (tensor), or by an average of these norms (running)",
    )
    add("--train-readout", action="store_true", help="train v too (ℓp-JointGD)")
    add("--lr-v", type=float, help="step size of the readout (default: that of W)")
    add("--loss", choices=("logistic", "exponential", "correlation"), default="logistic", help="the loss")
    add("--record", default="log", metavar="log|all|N", help="steps to keep: log-spaced, all, or N log-spaced")
    add("--loss-tol", type=float, help="stop when the loss falls below this")
    add("--backend", choices=("auto", "tensor", "numba"), default="auto", help="what runs the loop")
    add("--out", type=str, required=True, metavar="RUN.npz", help="where to write the run")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    check_out_file(out, "simulate", WRITTEN, (args.problem,))
    problem = mirrormax.load_problem(args.problem)
    with progress("simulate", args.quiet) as show:
        result = mirrormax.simulate(
            problem,
            p=args.p,
            lr=args.lr,
            steps=args.steps,
            normalize=None if args.normalize == "none" else args.normalize,
            train_readout=args.train_readout,
            loss=args.loss,
            record=_record(args.record),
            options=mirrormax.dynamics.SimulationOptions(
                lr_v=args.lr_v,
                loss_tol=args.loss_tol,
                backend=args.backend,
                progress=lambda done: show("simulate", done, max(args.steps, 1)),
            ),
        )
    is_quick = problem.X.size <= QUICK and args.p <= LARGEST_P  # to find the attention SVM of the tokens
    diagnosis = mirrormax.theory.diagnose(result, problem if is_quick else None)
    result.save(out)
    if not args.quiet:
        _tell(result, args.p, out)
        # Where numbers overflowed, what the selected tokens look like says nothing.
        line = f"  diagnosis  {diagnosis['precision'].text if result.status == 'nonfinite' else diagnosis}"
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(line)
        print(textwrap.fill(line, width, subsequent_indent=" " * 13))
    if result.status == "nonfinite":
        sys.stderr.write(f"mirrormax simulate: {diagnosis['precision'].text}\n")
        return NONFINITE
    return 0


def _record(text: str) -> str | int:
    if text in ("log", "all"):
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--record must be log, all or a whole number, got {text!r}.") from None


def _tell(result: mirrormax.dynamics.Trajectory, p: float, out: Path) -> None:
    print(
        f"mirror descent, p = {p:g}: {int(result.updates)} updates, ended by {result.status}",
        f"  loss       {float(result.loss[-1]):.10g}",
        f"  norm       {float(result.norm[-1]):.10g}  (‖W‖_p)",
        f"  attention  {float(result.mass[-1]):.10g}  on the selected tokens, mean",
        f"  selected   {' '.join(str(int(t)) for t in result.alpha)}",
        f"  written to {out}, {len(result.steps)} recorded steps",
        sep="\n",
    )
