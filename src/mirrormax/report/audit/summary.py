"""What an audit found, in sentences that do not say more than the numbers."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean, median

from mirrormax.auditing import Audit


def sentences(audit: Audit) -> list[str]:
    """The main findings of one audit."""
    heads, p = audit.heads, audit.heads[0].p
    solved = [head for head in heads if head.problem != "none"]
    ratios = sorted(head.ratio for head in solved) or [math.nan]
    apart = [head.divergence for head in solved] or [math.nan]
    told = [
        f"{len(heads)} heads in {1 + max(head.layer for head in heads)} layers; on average {_mean(audit, 'mass'):.0%} "
        f"of a row’s attention is on the selected token, and {_mean(audit, 'decisive'):.0%} of the rows have more "
        "than half of it there.",
        f"The selected token is the first one in {_mean(audit, 'on_first'):.0%} of the rows and the last one in "
        f"{_mean(audit, 'on_last'):.0%}, over all heads.",
        f"For p = {p:g} the heads realise {ratios[0]:.2g} to {ratios[-1]:.2g} of the best margin on the sample, median "
        f"{median(ratios):.2g}; the directions are {median(apart):.2f} apart in the median (0 the same, 1 unrelated).",
    ]
    controls = [point for point in audit.controls if point.p == p]
    if controls:
        told.append(
            f"Heads with their weights shuffled realise {median(point.ratio for point in controls):.2g} in the median, "
            f"at a divergence of {median(point.divergence for point in controls):.2f}."
        )
    soft = sum(head.problem == "soft" for head in heads)
    if soft:
        told.append(f"{soft} of {len(heads)} problems cannot be separated; there the margins are soft.")
    if len(solved) < len(heads):
        told.append(f"{len(heads) - len(solved)} of {len(heads)} heads have nothing to measure; see the table.")
    unsolved = sum(head.status != "optimal" for head in solved)
    if unsolved:
        told.append(f"{unsolved} of {len(heads)} problems stopped before the tolerance; see the table.")
    scored = [head for head in heads if head.locally_optimal is not None]
    if scored:
        orders = [head.in_order for head in scored if head.in_order is not None]
        optimal = sum(bool(head.locally_optimal) for head in scored)
        told.append(
            f"{optimal} of {len(scored)} heads select locally optimal tokens by the model’s own head"
            + (
                f"; in the median {median(orders):.0%} of a head’s support tokens score below the selected one."
                if orders
                else "."
            )
        )
    if audit.scan:
        told.append(f"Beside the controls, heads stand out most {_winners(audit)}.")
    return told


def _mean(audit: Audit, name: str) -> float:
    return fmean(getattr(head, name) for head in audit.heads)


def _winners(audit: Audit) -> str:
    by_ratio = Counter(head.best_p_ratio for head in audit.heads if head.best_p_ratio is not None)
    by_divergence = Counter(head.best_p_divergence for head in audit.heads if head.best_p_divergence is not None)

    def listed(counts: Counter[float]) -> str:
        return ", ".join(f"{count} at p = {p:g}" for p, count in sorted(counts.items()))

    return f"by ratio: {listed(by_ratio)}; by divergence: {listed(by_divergence)}"
