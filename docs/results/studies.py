"""Gather the verdicts of the larger studies for the report: ``python docs/results/studies.py``.

The quick profile trains every model twice, which decides little. The report therefore shows the committed studies
first; this script reads their ``*-comparisons.json`` and writes what they decided to
``src/mirrormax/experiments/studies.json``.
Files from before "undecided" was split are read by their intervals, with the rules of ``mirrormax.experiments``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src" / "mirrormax" / "experiments" / "studies.json"
STUDIES = {  # folder: what it was trained on, seeds
    "reviews": ("8,530 one-sentence reviews", 5),
    "imdb": ("IMDb, 25,000 + 25,000 reviews", 3),
    "cifar10": ("CIFAR-10, 20,000 + 10,000 images", 2),
}
# Which claim of an experiment a row decides, by what the row's name holds.
KEYS = {
    "table1": {"ℓ1.1 above ℓ2": "text-2", "ℓ1.1 above ℓ3": "text-3"},
    "fig8": {"sparser than ℓ2": "sparser", "entries with": "large"},
    "fig9": {"ℓ1.1 above ℓ2": "decisive"},
    "vit": {"above Adam": "adam", "ℓ1.1 above ℓ2": "keys"},
}
NUMBER = r"[+−-]?\d+(?:\.\d+)?(?:e-?\d+)?"


def numbers(text: str) -> list[float]:
    """The numbers of a text, whichever minus sign it has."""
    return [float(found.replace("−", "-")) for found in re.findall(NUMBER, text.replace(",", ""))]


def intervals(text: str) -> list[tuple[float, float]]:
    """The intervals [low, high] of a text."""
    found = re.findall(rf"\[({NUMBER}), ({NUMBER})\]", text)
    return [(float(low.replace("−", "-")), float(high.replace("−", "-"))) for low, high in found]


def verdict_of(row: dict[str, str]) -> str:
    """The verdict, with "undecided" split: published size excluded or not."""
    ends = intervals(row["ours"])
    if row["verdict"] != "undecided" or not ends or "884,736" in row["published"]:
        return row["verdict"]
    sizes = numbers(row["published"])
    if not sizes:
        return row["verdict"]
    if "Adam" in row["quantity"]:
        low, high = ends[0]
        return "undecided" if low <= sizes[0] <= high else "differs"
    return "smaller than published" if max(high for _, high in ends) < min(sizes) else "undecided"


def told(text: str) -> str:
    """True minus signs."""
    return re.sub(r"(?<![\w])-(?=\d)", "−", text)


def gather() -> list[dict[str, object]]:
    """A list of studies: for every experiment in a folder, the rows that decide something."""
    found = []
    for folder, (what, seeds) in STUDIES.items():
        for experiment, keys in KEYS.items():
            path = HERE / folder / f"{experiment}-comparisons.json"
            if not path.exists():
                continue
            rows = []
            for row in json.loads(path.read_text("utf-8"))["comparisons"]:
                name = ", ".join(filter(None, (row["quantity"], row.get("column", ""))))
                key = next((key for part, key in keys.items() if part in name), None)
                if key is not None and row["verdict"] != "not published":
                    decided = {
                        "published": told(row["published"]),
                        "ours": told(row["ours"]),
                        "verdict": verdict_of(row),
                    }
                    rows.append({"quantity": name, "key": key, **decided})
            found.append({"study": folder, "what": what, "seeds": seeds, "experiment": experiment, "rows": rows})
    return found


if __name__ == "__main__":
    TARGET.write_text(json.dumps(gather(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
