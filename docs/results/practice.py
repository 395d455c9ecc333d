"""The tables of the study of practice, and its finished trainings in one file.

    python docs/results/practice.py tables RESULTS --data-dir DATA
    python docs/results/practice.py keep RESULTS
    python docs/results/practice.py restore RESULTS

``tables`` prints the tables of ``practice/README.md`` from the trainings in RESULTS, task by task, and writes the
measurements and the picture of the tasks that are complete. ``keep`` adds every finished training of RESULTS to
``practice/trainings.jsonl``. ``restore`` puts these into RESULTS, so that the study goes on there and trains only what
is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirrormax._drawing import headline, house_style, save
from mirrormax._files import replacing
from mirrormax._identity import key
from mirrormax._results import ResultFolder
from mirrormax.experiments import Measured, Work, practice
from mirrormax.experiments._running import COLUMNS
from mirrormax.experiments._trainings import KIND, Job, Task, kept, place_of

HERE = Path(__file__).parent / "practice"
TRAININGS = HERE / "trainings.jsonl"


def tables(work: Work) -> None:
    complete = [task for task in practice.WHOLE.tasks if is_complete(task, work)]
    if not complete:
        return
    for name, tasks in (("practice", complete[:1]), ("others", complete[1:])):
        if tasks:
            table = pictured(name, tasks, work)
            for task in tasks:
                print(f"## {task.name}\n\n{goals(task, table)}\n\n{results(task, table)}\n\n{reachable(task, table)}\n")


def pictured(name: str, tasks: Sequence[Task], work: Work) -> Measured:
    """Write the measurements and the picture of some tasks."""
    data = practice.run(practice.Config(tuple(tasks)), work)
    table = Measured(practice.measure(data))
    with (HERE / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(asdict(row) for row in table)
    with house_style(), tempfile.TemporaryDirectory() as folder:
        fig = practice.draw(data, table)
        headline(fig, practice.tell(data, table).headline)
        shutil.copy(save(fig, Path(folder), name)[1], HERE)
    return table


def is_complete(task: Task, work: Work) -> bool:
    """Whether all trainings of a task are done; prints how many are, and what the trials came to."""
    trials = practice._trials(task)
    tuned = done(trials, work)
    if not tuned:
        return False
    print(f"{task.name}: {len(tuned)} of {len(trials)} trials are done.\n\n{tried(task, tuned)}\n")
    if len(tuned) < len(trials):
        return False
    finals = practice._finals(task, practice._chosen(task, tuned))
    print(f"{task.name}: {len(done(finals, work))} of {len(finals)} trainings of what was chosen are done.\n")
    return len(done(finals, work)) == len(finals)


def done(jobs: Sequence[Job], work: Work) -> dict[Job, dict[str, Any]]:
    """The trainings that are finished, with what they came to."""
    finished = {}
    for job in jobs:
        folder, about = place_of(job, work.runs, work.data_dir)
        if folder.is_current(about):
            finished[job] = kept(job, work.runs, work.data_dir)
    return finished


def tried(task: Task, tuned: dict[Job, dict[str, Any]]) -> str:
    """Every trial with its validation results, for dense, 80 % and 90 %."""
    unit = practice.UNITS[task.base.chosen_by]
    lines = ["| method | validation at lr, knob: dense / 80 % / 90 % |", "|---|---|"]
    for name, _ in task.methods:
        texts = []
        for job in [job for job in tuned if job.method == name]:
            goals = practice.GOALS if job.share is None else (job.share,)
            ends = [unit.scale * practice._best(tuned[job], "validation", task, goal)[0] for goal in goals]
            knob = "-".join(map(str, job.knob)) if isinstance(job.knob, tuple) else job.knob
            texts.append(f"{job.lr:g}, {knob}: " + " / ".join(f"{end:.{unit.places}f}" for end in ends))
        lines.append(f"| {name} | {'; '.join(texts)} |")
    return "\n".join(lines)


def goals(task: Task, table: Measured) -> str:
    """The goals with one number, and how many opponents the others are met against."""
    lines = ["| goal | measured | verdict |", "|---|---|---|"]
    rows = [row for row in table if row.quantity.startswith(f"{task.name}: ")]
    lines += [
        f"| {row.quantity.partition(': ')[2]}, {row.column}: {row.published} | {row.ours} | {row.verdict} |"
        for row in rows
        if "behind dense" in row.quantity
    ]
    for share in ("80 %", "90 %"):
        ahead = [row for row in rows if "is ahead" in row.quantity and share in row.quantity]
        kinds = {kind: [row.column for row in ahead if row.verdict == kind] for kind in ("met", "undecided", "differs")}
        texts = [f"{kind}: {len(names)} ({', '.join(names)})" for kind, names in kinds.items() if names]
        lines.append(f"| ahead of every opponent at {share} | {'; '.join(texts)} | |")
    return "\n".join(lines)


def results(task: Task, table: Measured) -> str:
    """A row per method: results, how far the target is ahead, time and memory."""
    ahead = f"{task.name}: {practice.UNITS[task.base.chosen_by].word} by which the target is ahead, "
    columns = {
        "dense": f"{task.name}: dense",
        "80 % zeros": f"{task.name}: 80 % zeros",
        "target ahead by": f"{ahead}80 % zeros",
        "90 % zeros": f"{task.name}: 90 % zeros",
        "target ahead by ": f"{ahead}90 % zeros",
        "time": f"{task.name}: {practice.COSTS['seconds']}",
        "memory": f"{task.name}: {practice.COSTS['state']}",
    }
    cells = {(row.quantity, row.column): row.ours for row in table}
    lines = [f"| method | {' | '.join(name.strip() for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, _ in task.methods:
        texts = [cells.get((quantity, name), "") for quantity in columns.values()]
        texts = [text if "ahead" in of else text.split(" [")[0] for of, text in zip(columns, texts, strict=True)]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def reachable(task: Task, table: Measured) -> str:
    """The largest share of zeros within a loss of dense AdamW."""
    rows = [row for row in table if row.quantity.startswith(f"{task.name}: zeros within")]
    quantities = list(dict.fromkeys(row.quantity for row in rows))
    return "\n".join(
        f"- {quantity.partition(': ')[2]}: "
        + ", ".join(f"{row.column} {row.ours}" for row in rows if row.quantity == quantity)
        for quantity in quantities
    )


def keep(runs: Path) -> None:
    """Add the finished trainings to those that were kept before, one a line, in the order of their keys."""
    before = TRAININGS.read_text("utf-8").splitlines() if TRAININGS.exists() else []
    lines = {key(json.loads(line)["identity"]): line for line in before}
    for place in runs.glob("practice-*"):
        folder = ResultFolder(place, KIND)
        manifest = folder.manifest()
        if manifest is not None and manifest.complete and folder.damaged() is None:
            result = json.loads((place / "result.json").read_text("utf-8"))
            line = json.dumps({"identity": manifest.identity, "result": result}, ensure_ascii=False)
            lines[key(manifest.identity)] = line
    with replacing(TRAININGS) as temporary:
        temporary.write_text("\n".join(lines[name] for name in sorted(lines)) + "\n", encoding="utf-8")
    print(f"{len(lines)} trainings in {TRAININGS}")


def restore(runs: Path) -> None:
    """Put the trainings that were kept into a folder; those that it has stay."""
    restored = 0
    for line in TRAININGS.read_text("utf-8").splitlines():
        training = json.loads(line)
        about = training["identity"]
        folder = ResultFolder(runs / f"practice-{key(about)}", KIND, within=runs.parent)
        if folder.is_current(about):
            continue
        with folder.open(about):
            folder.save_json("result.json", training["result"])
            folder.finish()
        restored += 1
    print(f"{restored} trainings restored to {runs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tables", "keep", "restore"))
    parser.add_argument("results", type=Path, help="folder that mirrormax reproduce writes to")
    parser.add_argument("--data-dir", type=Path, help="folder with data files; needed for tables")
    args = parser.parse_args()
    runs = args.results / "runs"
    if args.what == "tables":
        tables(Work(runs=runs, data_dir=args.data_dir))
    else:
        keep(runs) if args.what == "keep" else restore(runs)


if __name__ == "__main__":
    main()
