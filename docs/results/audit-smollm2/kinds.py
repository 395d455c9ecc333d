"""Print the tables on this page from heads.csv: ``python docs/results/audit-smollm2/kinds.py``."""

import csv
from collections import Counter
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent


def main() -> None:
    with (HERE / "heads.csv").open(encoding="utf-8") as file:
        heads = list(csv.DictReader(file))
    print("| layers | sink | previous | induction | other kinds | none | first token | margin / optimum | divergence |")
    print("|---|---|---|---|---|---|---|---|---|")
    named = ("first-token sink", "previous token", "induction")
    for start in range(0, 30, 10):
        part = [head for head in heads if start <= int(head["layer"]) < start + 10]
        kinds = Counter(head["kind"] for head in part)
        other = sum(count for kind, count in kinds.items() if kind and kind not in named)
        cells = [f"{start}-{start + 9}", *(str(kinds[kind]) for kind in named), str(other), str(kinds[""])]
        for name, digits in (("on_first", ".2f"), ("ratio", ".2g"), ("divergence", ".3f")):
            cells.append(format(median(float(head[name]) for head in part), digits))
        print("| " + " | ".join(cells) + " |")
    for name in ("on_previous", "induction", "ratio"):
        best = sorted(heads, key=lambda head: -float(head[name]))[:5]
        print(f"\nlargest {name}: " + ", ".join(f"{h['layer']}.{h['head']} {float(h[name]):.2g}" for h in best))


main()
