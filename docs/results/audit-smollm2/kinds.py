"""Print the tables on this page from heads.csv and shuffled.csv: ``python docs/results/audit-smollm2/kinds.py``."""

import csv
from collections import Counter
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    heads, shuffled = rows("heads.csv"), rows("shuffled.csv")
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
    print("\nkinds of heads:", dict(Counter(head["kind"] or "none" for head in heads)))
    print("kinds of shuffled heads:", dict(Counter(head["kind"] or "none" for head in shuffled)))
    for found, whose in ((heads, "heads"), (shuffled, "shuffled heads")):
        count = sum(float(head["on_first"]) > 0.5 for head in found)
        print(f"{whose} that select the first token in more than half of the rows: {count} of {len(found)}")
    for name in ("on_first", "on_self", "on_previous", "induction"):
        most = max(float(head[name]) for head in shuffled)
        print(f"largest {name} of a shuffled head: {most:.2g}")
    for name in ("on_previous", "induction", "ratio"):
        best = sorted(heads, key=lambda head: -float(head[name]))[:5]
        print(f"\nlargest {name}: " + ", ".join(f"{h['layer']}.{h['head']} {float(h[name]):.2g}" for h in best))


main()
