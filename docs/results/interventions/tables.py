"""Print the tables on this page from the CSV files: ``python docs/results/interventions/tables.py``."""

import csv
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from mirrormax.auditing import MAX_MARGIN, OFF
from mirrormax.report import milder, tellings

HERE = Path(__file__).parent
WORDS = ("kind", "name", "form", "problem", "status")


def rows(name: str) -> list[SimpleNamespace]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        named = [{**row, "name": f"{row['layer']}.{row['head']}"} for row in csv.DictReader(file)]
    return [SimpleNamespace(**{key: value_of(key, value) for key, value in row.items()}) for row in named]


def value_of(key: str, value: str):
    if key in WORDS:
        return value or None
    if key in ("layer", "head"):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return None


def shown(one) -> str:
    return "—" if one is None else f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]".replace("-", "−")


def main() -> None:
    for model in ("smollm2", "minilm"):
        heads, effects = rows(f"heads-{model}.csv"), rows(f"effects-{model}.csv")
        print(f"\n{model}\n\n| change | heads | number | median effect | ratio and effect | among heads of a layer |")
        print("|---|---|---|---|---|---|")
        sink = {(one.layer, one.head): one.kind == "first-token sink" for one in heads}
        for kind in (OFF, MAX_MARGIN):
            for group in tellings(heads, effects, kind):
                mine = [
                    one.mean
                    for one in effects
                    if one.kind == kind
                    and (
                        group.group == "all heads" or sink[one.layer, one.head] == (group.group == "first-token sinks")
                    )
                ]
                cells = [kind, group.group, str(len(mine)), f"{median(mine):.2g}", shown(group.among_all)]
                print("| " + " | ".join([*cells, shown(group.in_layer)]) + " |")
        for kind in (OFF, MAX_MARGIN):
            mine = sorted((one for one in effects if one.kind == kind), key=lambda one: -one.mean)
            still = sum(one.low <= 0 <= one.high for one in mine)
            below = sum(one.high < 0 for one in mine)
            print(
                f"\n{kind}: interval holds 0 for {still} of {len(mine)} heads, is below it for {below}; largest:",
                end=" ",
            )
            print(
                ", ".join(f"{one.layer}.{one.head} {one.mean:.2g} [{one.low:.2g}, {one.high:.2g}]" for one in mine[:5])
            )
        print(f"\nmax-margin weights milder than off: {shown(milder(effects))} of the heads")


main()
