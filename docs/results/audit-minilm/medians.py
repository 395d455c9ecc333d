"""Print the numbers on this page from its CSV files: ``python docs/results/audit-minilm/medians.py``.

A row of scan.csv with a head below zero is a control, whose weights were put in random order.
"""

import csv
from collections import Counter
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of(found: list[dict[str, str]], column: str) -> float:
    return median(float(row[column]) for row in found)


def main() -> None:
    heads, scan = rows("heads.csv"), rows("scan.csv")
    controls = [row for row in scan if int(row["head"]) < 0]
    print("layer  selected  first  ratio  shuffled  divergence  shuffled")
    for layer in sorted({row["layer"] for row in heads}):
        own = [row for row in heads if row["layer"] == layer]
        other = [row for row in controls if row["layer"] == layer and float(row["p"]) == 2]
        numbers = [of(own, column) for column in ("mass", "on_first", "ratio", "divergence")]
        ratio, divergence = of(other, "ratio"), of(other, "divergence")
        print(
            f"{layer} {numbers[0]:.2f} {numbers[1]:.2f} {numbers[2]:.2g} {ratio:.2g} {numbers[3]:.3f} {divergence:.3f}"
        )
    print("\np  ratio  shuffled  quotient  divergence  shuffled")
    for p in sorted({float(row["p"]) for row in scan}):
        own = [row for row in scan if float(row["p"]) == p and int(row["head"]) >= 0]
        other = [row for row in controls if float(row["p"]) == p]
        ratio, shuffled = of(own, "ratio"), of(other, "ratio")
        divergences = f"{of(own, 'divergence'):.3f} {of(other, 'divergence'):.3f}"
        print(f"{p:g} {ratio:.2g} {shuffled:.2g} {ratio / shuffled:.0f} {divergences}")
    shuffled = rows("shuffled.csv")
    for found, whose in ((heads, "heads"), (shuffled, "shuffled heads")):
        print(f"\nkinds of {whose}:", dict(Counter(row["kind"] or "none" for row in found)))
        for name in ("on_first", "on_separator"):
            print(f"largest {name}: {max(float(row[name]) for row in found):.2g}")
    theirs = [float(row["ratio"]) for row in controls if float(row["p"]) == 2]
    pairs = [float(row["ratio"]) > other for row in heads for other in theirs]
    wide = sum(float(row["ratio"]) > max(theirs) for row in heads)
    print(f"\nlarger ratio in {sum(pairs) / len(pairs):.0%} of all pairs; {wide} heads above all controls")
    print(f"share of the norm in the span of the sample: {of(heads, 'in_span'):.2f}")


if __name__ == "__main__":
    main()
