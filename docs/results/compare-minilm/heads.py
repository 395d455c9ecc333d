"""Print the table on this page from the two CSV files: ``python docs/results/compare-minilm/heads.py``."""

import csv
from collections import Counter
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    pairs = list(zip(rows("heads-a.csv"), rows("heads-b.csv"), strict=True))
    print("| layer | ratio, base | ratio, tuned | attention on the selected token | largest change of it |")
    print("|---|---|---|---|---|")
    for layer in sorted({a["layer"] for a, _ in pairs}):
        mine = [(a, b) for a, b in pairs if a["layer"] == layer]
        ratios = [median(float(one[k]["ratio"]) for one in mine) for k in (0, 1)]
        masses = [median(float(one[k]["mass"]) for one in mine) for k in (0, 1)]
        most = max(mine, key=lambda one: abs(float(one[1]["mass"]) - float(one[0]["mass"])))
        moved = float(most[1]["mass"]) - float(most[0]["mass"])
        cells = [layer, f"{ratios[0]:.2g}", f"{ratios[1]:.2g}", f"{masses[0]:.2f} → {masses[1]:.2f}"]
        print("| " + " | ".join([*cells, f"{moved:+.3f} ({layer}.{most[0]['head']})".replace("-", "−")]) + " |")
    for k, name in enumerate(("base", "tuned")):
        print(f"\nkinds, {name}:", dict(Counter(one[k]["kind"] or "none" for one in pairs)))
    changed = [(a, b) for a, b in pairs if a["kind"] != b["kind"]]
    print(
        "\nchanged kind:",
        ", ".join(f"{a['layer']}.{a['head']} {a['kind'] or 'none'} → {b['kind'] or 'none'}" for a, b in changed),
    )


main()
