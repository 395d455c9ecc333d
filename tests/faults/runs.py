"""Commands at sizes that take a moment, and what they leave behind, timing aside."""

import json
import re

TASK = "--train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 2 --head-dim 4 --batch-size 16"
WORDS = "--vocab-size 100 --max-length 12 --dim 8 --hidden 8 --blocks 1 --heads 2 --batch-size 16"
LENGTH = "--epochs 3 --stop-accuracy 2 --accelerator cpu --quiet"
SMALL = "--epochs 2 --train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 1 --head-dim 8"
FEW_WORDS = f"--epochs 2 --accelerator cpu {WORDS}"
PAIR = "--limit 8 --samples 4 --rivals 2 --controls 1 --maps 1"
FEW = "--limit 8 --samples 4 --rivals 2 --controls 1 --scan 2 --examples 1"

LINES = {
    "reproduce": "reproduce fig2 fig3 sparsity --jobs 1 --quiet --out out",
    "reproduce one": "reproduce fig2 --jobs 1 --quiet --out out",
    "reproduce trained": "reproduce vit --jobs 1 --quiet --out out",
    "train": f"train vision {TASK} {LENGTH} --out out",
    "train texts": f"train sentiment --data texts.csv {WORDS} {LENGTH} --out out",
    "tune": f"tune vision {SMALL} --accelerator cpu --quiet --jobs 1 --trials 2 --out out",
    "tune texts": f"tune sentiment --data texts.csv {FEW_WORDS} --quiet --jobs 1 --trials 2 --out out",
    "audit": f"audit checkpoint --data texts.csv {FEW} --quiet --out out",
    "compare": f"compare checkpoint other --data texts.csv --label-column label {PAIR} --quiet --out out",
    "prune": "prune checkpoint --data texts.csv --label-column label --share 0.5 --shares 0.3 --quiet --out out",
    "simulate": "simulate problem.npz --p 1.75 --steps 40 --quiet --out run.npz",
    "svm": "svm problem.npz --p 1.75 --quiet --out solution.npz",
}
COMMANDS = {name: line.split() for name, line in LINES.items()}


def contents(folder):
    """The bytes of every result file; what tells time, the database of a study and hidden files are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name not in ("timing.csv", "study.db") and path.name[0] != ".":
            found[name] = _timeless(path)
    return found


def _timeless(path):
    content = path.read_bytes()
    if path.name == "mirrormax.json":
        told = json.loads(content)
        told["facts"].pop("seconds", None)
        timed = (".html", "pruning.json")
        told["files"] = {name: known for name, known in told["files"].items() if not name.endswith(timed)}
        return told
    if path.name == "pruning.json":  # its sentences tell measured times
        return {name: value for name, value in json.loads(content).items() if name != "sentences"}
    if path.suffix == ".html":
        return re.sub(rb"[0-9.]+ s; configuration", b"", content)
    return content
