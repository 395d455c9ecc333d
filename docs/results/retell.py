"""Write the larger studies' pages again from the files beside them: ``python docs/results/retell.py``.

Studies keep their numbers, and the words and verdicts of the day on which they ran. Here the numbers are told as the
report tells them now: verdicts by ``studies.py``, a column for each method, true minus signs, as many decimals for a
mean as for its deviation.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

from mirrormax.experiments import Measurement, load_experiment
from mirrormax.report import fold

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from collect_figures import table  # noqa: E402
from studies import told, verdict_of  # noqa: E402

COMMANDS = {
    "reviews": "mirrormax reproduce table1 fig8 fig9 --profile small",
    "imdb": "mirrormax reproduce table1 fig8 fig9 --profile small --data-dir DIR",
    "cifar10": "mirrormax reproduce vit --profile small --data-dir DIR",
}
METHOD = re.compile(r"(?:(ℓ[\d.]+|AdamW), )?(.+?)(?:, (ℓ[\d.]+|AdamW))?")
THEN = {
    "fig8": "The tables do not hold the histograms; [the picture of their time](fig8-then.png) does, in colours of its "
    "own.",
    "vit": "The tables hold neither histograms nor curves per epoch; [the picture of their time](vit-then.png) has "
    "both, in colours of its own.",
}
ALWAYS, RUNS = ("config.json", "summary.csv", "comparisons.json"), ("runs.csv", "tuning.csv")
FILES = {"table1": ALWAYS + RUNS, "fig8": ALWAYS, "fig9": ALWAYS, "vit": ALWAYS + RUNS}


def tidy(text: str) -> str:
    """Three digits of a mean and as many decimals of its deviation; a space before the percent sign.

    >>> tidy("80 ± 0.082, 0.45 ± 0.0044, -1.1 and 7.9%")
    '80.0 ± 0.1, 0.450 ± 0.004, −1.1 and 7.9 %'
    """

    def pair(found: re.Match[str]) -> str:
        mean, deviation = float(found[1]), float(found[2])
        decimals = max(0, 2 - math.floor(math.log10(abs(mean) or 1)))
        return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"

    return re.sub(r"(?<=\d)%", " %", re.sub(r"(\d+(?:\.\d+)?) ± (\d+(?:\.\d+)?)", pair, told(text)))


def retold(row: dict[str, str]) -> Measurement:
    """A row with today's verdict; what nobody published has its method as a column."""
    quantity, ours, column = row["quantity"], row["ours"], row.get("column", "")
    if row["verdict"] == "not published" and not column:
        found = METHOD.fullmatch(quantity)
        assert found is not None
        quantity, column = found[2], found[1] or found[3] or ""
    chosen = " chosen on validation"
    if ours.endswith(chosen):
        quantity, ours = f"{quantity}, percent,{chosen}", ours.removesuffix(chosen)
    return Measurement(quantity, tidy(row["published"]), tidy(ours), verdict_of(row), column=column)


def section(folder: Path, name: str) -> str:
    """One experiment of a study."""
    saved = json.loads((folder / f"{name}-comparisons.json").read_text("utf-8"))
    title = load_experiment(name).TITLE
    links = [f"[{file}]({name}-{file})" for file in FILES[name]] + ["[attention maps](fig9.html)"] * (name == "fig9")
    parts = [f"## {title}", tidy(saved["shows"]), f"![{title}]({name}.png)"]
    parts += [f"*{THEN[name]}*"] if name in THEN else []
    parts += ["\n".join(table(block)).strip() for block in fold(map(retold, saved["comparisons"]))]
    return "\n\n".join([*parts, ", ".join(links)]) + "\n"


def page(folder: Path) -> str:
    """The page of a study."""
    known = [name for name in FILES if (folder / f"{name}-comparisons.json").exists()]
    head = f"# Measured: {folder.name}\n\n    {COMMANDS[folder.name]}\n"
    return "\n".join([head, *(section(folder, name) for name in known)])


if __name__ == "__main__":
    for study in COMMANDS:
        (HERE / study / "README.md").write_text(page(HERE / study), encoding="utf-8")
