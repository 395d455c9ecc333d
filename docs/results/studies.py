"""Gather the verdicts of the larger studies for the report: ``python docs/results/studies.py``.

The quick profile trains every model twice, which decides little. The report therefore shows the committed studies
first; this script reads their ``*-comparisons.json`` and writes what they decided to
``src/mirrormax/experiments/studies.json``. Where ``ended/differences.csv`` has runs that were trained to the end, those
decide, and shorter studies of the same claim are left out.
Files from before "undecided" was split are read by their intervals, with the rules of ``mirrormax.experiments``.
"""

from __future__ import annotations

import csv
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


ENDED = {  # experiment, claim and what was measured, by quantity and pair of ended/differences.csv
    ("test_by_validation", "ℓ1.1 − ℓ2"): ("table1", "text-2", "points"),
    ("test_by_validation", "ℓ1.1 − ℓ3"): ("table1", "text-3", "points"),
    ("hoyer", "ℓ1.1 − ℓ2"): ("fig8", "sparser", "in the Hoyer index"),
    ("decisive_252", "ℓ1.1 − ℓ2"): ("fig9", "decisive", "in the paper's score, our 252 reviews"),
    ("decisive_published", "ℓ1.1 − ℓ2"): ("fig9", "decisive", "in the paper's score, the authors' 50 sentences"),
}
OF_IMAGES = {
    ("test_by_validation", "ℓ1.1 − AdamW"): ("vit", "adam", "points"),
    ("hoyer", "ℓ1.1 − ℓ2"): ("vit", "keys", "in the Hoyer index of W_K, W_Q and W_V"),
}
VERDICTS = {"holds": "met", "the reverse": "differs"}
IMAGES = ("digits", "cifar10")


def ended() -> list[dict[str, object]]:
    """The same of runs that were trained to the end; images bear on the vision transformer, texts on all else."""
    path, studies = HERE / "ended" / "differences.csv", {}
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    for row in rows:
        known = (OF_IMAGES if row["study"] in IMAGES else ENDED).get((row["quantity"], row["between"]))
        if known is None or row["verdict"] == "not ended":
            continue
        experiment, key, unit = known
        gap, low, high = (float(row[name]) for name in ("difference", "low", "high"))
        ours = told(f"{gap:+.3g} [{low:+.3g}, {high:+.3g}]")
        decided = {"published": row["published"], "ours": ours, "verdict": VERDICTS.get(row["verdict"], row["verdict"])}
        mark = [gap, low, high, float(row["published"])] if row["published"] else None
        quantity = f"ℓ1.1 above {row['between'][7:]}, {unit}"
        name = f"{row['study']}, trained to the end"
        study = {"study": name, "folder": "ended", "what": name, "seeds": int(row["seeds"])}
        found = studies.setdefault((row["study"], experiment), {**study, "experiment": experiment, "rows": []})
        found["rows"].append({"quantity": quantity, "key": key, **decided, "mark": mark, "measured": f"{ours} {unit}"})
    return list(studies.values())


def mark_of(row: dict[str, str]) -> list[float] | None:
    """Our number, the ends of its interval, and the least that was published, where the two can be compared."""
    ends, sizes = intervals(row["ours"]), numbers(row["published"])
    if not ends or not sizes or "884,736" in row["published"]:
        return None
    return [numbers(row["ours"])[0], *ends[0], min(sizes)]


def measured(folder: Path, experiment: str, key: str, rows: list[dict[str, str]]) -> str:
    """What a study measured of a claim, in words with numbers."""
    ours = [re.sub(r", \d+ and \d+ runs$", "", row["ours"]) for row in rows]
    if experiment in ("table1", "vit") and key != "keys":
        return f"{ours[0]} points"
    with (folder / f"{experiment}-summary.csv").open(encoding="utf-8") as file:
        table = {row[""]: row for row in csv.DictReader(file)}
    if key == "large":
        roles = [re.findall(r"W_[KQV]", row["quantity"])[0] for row in rows]
        return "more under ℓ2: " + "; ".join(f"{role} {one}" for role, one in zip(roles, ours, strict=True))
    if key == "sparser":
        roles = ("key", "query", "value")
        first, second = (sum(float(table[f"{p}, {r}"]["hoyer"]) for r in roles) / 3 for p in ("ℓ1.1", "ℓ2"))
        return f"Hoyer index {first:.3f} under ℓ1.1, {second:.3f} under ℓ2"
    if key == "decisive":
        first, second = (100 * float(table[name]["mass"]) for name in ("ℓ1.1", "ℓ2"))
        return f"decisive words get {first:.1f} % of the attention under ℓ1.1, {second:.1f} % under ℓ2"
    first, second = (float(table[name]["key near_zero"]) for name in ("ℓ1.1", "ℓ2"))
    return f"{first:,.0f} key weights are below 0.01 under ℓ1.1, {second:,.0f} under ℓ2"


def gather() -> list[dict[str, object]]:
    """A list of studies: for every experiment in a folder, the rows that decide something."""
    found = ended()
    settled = {row["key"] for study in found for row in study["rows"]}  # type: ignore[attr-defined]
    for folder, (what, seeds) in STUDIES.items():
        for experiment, keys in KEYS.items():
            path = HERE / folder / f"{experiment}-comparisons.json"
            if not path.exists():
                continue
            rows = []
            for row in json.loads(path.read_text("utf-8"))["comparisons"]:
                name = ", ".join(filter(None, (row["quantity"], row.get("column", ""))))
                key = next((key for part, key in keys.items() if part in name), None)
                if key is not None and key not in settled and row["verdict"] != "not published":
                    decided = {
                        "published": told(row["published"]),
                        "ours": told(row["ours"]),
                        "verdict": verdict_of(row),
                    }
                    rows.append({"quantity": name, "key": key, **decided, "mark": mark_of(row)})
            for key in dict.fromkeys(row["key"] for row in rows):
                mine = [row for row in rows if row["key"] == key]
                mine[0]["measured"] = measured(HERE / folder, experiment, key, mine)
            if rows:
                study = {"study": folder, "folder": folder, "what": what, "seeds": seeds}
                found.append({**study, "experiment": experiment, "rows": rows})
    return found


if __name__ == "__main__":
    TARGET.write_text(json.dumps(gather(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
