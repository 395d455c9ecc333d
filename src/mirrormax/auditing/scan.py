"""For which p does a head look most like a max-margin solution?

Neither the ratio nor the divergence can be compared across p as it is: a ratio grows with p for weights that learned
nothing, and a divergence falls towards both ends. So a head is compared with the layer's controls, whose weights are
its own in random order: the best p has the largest ratio / (median ratio of the controls), or the smallest
divergence − (median divergence of the controls). Without controls the numbers are compared as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from mirrormax.auditing.result import Head, ScanPoint


def relative_to_controls(points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[tuple[float, float]]:
    """(ratio over the controls', divergence minus the controls') of every point."""
    ratios: dict[tuple[int, float], list[float]] = {}
    divergences: dict[tuple[int, float], list[float]] = {}
    for one in controls:
        ratios.setdefault((one.layer, one.p), []).append(one.ratio)
        divergences.setdefault((one.layer, one.p), []).append(one.divergence)
    found = []
    for point in points:
        key = (point.layer, point.p)
        base = median(ratios[key]) if key in ratios else 1.0
        shift = median(divergences[key]) if key in divergences else 0.0
        found.append((point.ratio / base if base > 0 else float("nan"), point.divergence - shift))
    return found


def with_best_p(heads: Sequence[Head], points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[Head]:
    """The heads with ``best_p_ratio`` and ``best_p_divergence`` filled in, None where p was not scanned."""
    of_head: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for point, (ratio, divergence) in zip(points, relative_to_controls(points, controls), strict=True):
        of_head.setdefault((point.layer, point.head), []).append((point.p, ratio, divergence))
    filled = []
    for head in heads:
        mine = of_head.get((head.layer, head.head), [])
        usable = [one for one in mine if one[1] == one[1] and one[2] == one[2]]  # NaN is not equal to itself
        filled.append(
            replace(
                head,
                best_p_ratio=max(usable, key=lambda one: one[1])[0] if usable else None,
                best_p_divergence=min(usable, key=lambda one: one[2])[0] if usable else None,
            )
        )
    return filled
