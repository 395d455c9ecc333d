"""Every command on a table of bad inputs: exit code 2, one sentence, and nothing written."""

import json
import shlex
import struct
import zipfile

import numpy as np
import pytest
import torch
from command_line import refusal
from readers import piece_tokenizer

from mirrormax import commands
from mirrormax.data import save_problem, sphere_problem
from mirrormax.nets import TransformerClassifier, TransformerConfig, save_model

PROBLEM = "--out new.npz"
FILES = {  # a bad problem file, and what the sentence says of it
    "nowhere.npz": "does not exist",
    "folder": "is not a file",
    "empty": "empty is empty",
    "text.csv": "is not an .npz file",
    "array.npy": "is not an .npz file",
    "half.npz": "is not an .npz file",
    "nan.npz": "X holds nan",
    "infinite.npz": "v holds inf",
    "flat.npz": "X must have the shape (..., n, T, d)",
    "other.npz": "y must have the shape",
    "words.npz": "X must hold real numbers",
    "objects.npz": "it holds Python objects",
    "misspelt.npz": "did you mean 'alpha'",
    "lacking.npz": "has no array 'v'",
    "terabytes.npz": "cannot be read",
}
NUMBERS = {
    "--p 1": "p must be",
    "--p nan": "got nan",
    "--p inf": "got inf",
    "--p 1e308": "p must be at most 10000, got 1e+308: beyond it, |w|^p has no digits left in double precision.",
    "--p two": "invalid float value: 'two'",
}
AUDITED = {
    "'' --data text.csv": "give a name",
    "nowhere --data text.csv": "nowhere",
    "text.csv --data text.csv": "text.csv",
    "folder --data text.csv": "folder",
    "damaged --data text.csv": "model.safetensors",
    "unknown --data text.csv": "'colour'",
    "giant --data text.csv": "model",
    "model --data nowhere.csv": "nowhere.csv does not exist",
    "model --data folder": "folder",
    "model --data empty.csv": "empty.csv is empty",
    "model --data list.json": "no .csv, .parquet, .txt or .npz file",
    "model --data text.csv --text-column review": "has no column 'review'",
    "model --data text.csv --limit -1": "--limit must be at least 1, or 0 for all",
    "model --data text.csv --max-length 0": "--max-length must be",
    "model --data text.csv --batch-size 0": "batch",
    "model --data text.csv --samples 0": "samples",
    "model --data text.csv --p 1": "p must be",
    "model --data text.csv --p nan": "p must be",
    "model --data text.csv --out empty": "empty is a file",
    "model --data text.csv --seed -1": "seed",
    "model --data text.csv --out empty/new": "empty is a file",
    "model --data text.csv --out /proc/new": "no file can be made in /proc",
    "model --data reviews --data-dir empty": "empty is not a folder",
}
OF_AUDITS = {
    "garbled --data text.csv": "is not JSON",
    "mute --data text.csv": "has no tokenizer.json",
    "model --data blank.txt": "holds no texts",
    "model --data pictures.npz": "the model reads words and the data are images",
    "model --data text.csv --query middle": "query must be a position",
    "model --data text.csv --scan 1.5,x": "argument --scan",
    "model --data text.csv --max-length 2": "--max-length must be at least 3",
    "model --data text.csv --target label": "labels were asked for",
    "model --data text.csv --scheduler nowhere": "no dask scheduler answers at nowhere",
    "model --data text.csv --heads 0.9": "--heads must be between 0.0 and 0.0, the model's last, got '0.9'",
    "model --data text.csv --heads ０.０": "--heads must be names such as '3.1'",
    "model --data text.csv --heads ,": "give names with commas between them",
    "model --data text.csv --query 128": "--query must be a position below --max-length 128",
    "model --data text.csv --shuffled 999999999999": "--shuffled must be at most 100000",
}
PRUNED = {
    "nowhere --data text.csv --share 0.5": "nowhere",
    "damaged --data text.csv --share 0.5": "model.safetensors",
    "model --data nowhere.csv --share 0.5": "nowhere.csv does not exist",
    "model --data text.csv": "required: --share",
    "model --data text.csv --share 1": "share",
    "model --data text.csv --share nan": "share",
    "model --data text.csv --share 0.5 --shares 0,2": "shares",
    "model --data text.csv --share 0.5 --structured block": "structured",
    "model --data text.csv --share 0.5 --out empty": "empty is a file",
    "model --data text.csv --share 0.5 --shares half": "give numbers with commas between them, such as 0.5,0.8",
    "model --data text.csv --share 0.5 --by margin --calibration 40": "got 40 of 40 rows",
    "model --data text.csv --share 0.5 --by magnitude --calibration 2": "--calibration 2",
    "model --data text.csv --share 0.4 --structured 2:4": "share",
    "model --data text.csv --share 0.5 --structured row --by sparsegpt": "structured",
    "model --data text.csv --share 0.5 --export plain": "--export",
}
TRAINED = {
    "": "required: TASK",
    "chess": "invalid choice: 'chess'",
    "vision --colour red": "unrecognized arguments: --colour red",
    "vision --epochs 0": "epochs must be at least 1",
    "vision --epochs many": "invalid int value: 'many'",
    "vision --dim 2000000000": "GB to train",
    "vision --dim 2147483647 --hidden 2147483647": "larger than any machine's memory",
    "vision --batch-size 99999999999999": "--batch-size must be at most",
    "vision --seed -1": "seed must be at least 0",
    "vision --dropout nan": "dropout",
    "vision --warmup 99": "--warmup must be less than the run's 20 epochs",
    "vision --out empty": "empty is a file",
    "vision --data-dir nowhere --data cifar10": "nowhere, which does not exist",
    "vision --data-dir folder --data cifar10": "there is no cifar-10-batches-bin",
    "vision --config nowhere.json": "nowhere.json",
    "vision --config folder": "folder",
    "vision --config empty": "is not JSON",
    "vision --config list.json": "holds no JSON object",
    "vision --config unknown.json": "'colour' is no choice of a vision run",
    "vision --config type.json": "must be a number, got 'x' (str)",
    "vision --config nan.json": "must be a finite number",
    "sentiment --data ''": "argument --data",
    "sentiment --data nowhere.csv": "nowhere.csv does not exist",
    "sentiment --data folder": "folder",
    "sentiment --data empty.csv": "empty.csv is empty",
    "sentiment --data blank.csv": "row 1 of",
    "sentiment --data ragged.csv": "row 1 of the table ragged.csv",
    "sentiment --data one.csv": "two classes",
    "sentiment --data half.parquet": "damaged or not a parquet file",
    "sentiment --data text.csv --vocab folder": "folder",
    "sentiment --data text.csv --vocab empty": "empty",
    "sentiment --data text.csv --vocab-size 2000000000 --dim 2000000000": "memory",
    "sentiment --data text.csv --max-length 2000000000": "GB to train",
}
OF_TRAINING = {
    "vision --epoch 3": "unrecognized arguments: --epoch 3",
    "vision --optimizer adam": "argument --optimizer: invalid choice: 'adam'",
    "vision --patch 3": "--image-size must be a multiple of patch",
    "vision --data faces": "'faces' is no set of images",
    "vision --out empty/run": "is a file",
    "vision --out .": "holds files that are not of a training run",
    "vision --out . --force": "holds files that are not of a training run",
    "vision --devices 0": "--devices must be at least 1, got 0",
    "vision --accelerator cpu --devices 99999": "--devices must be at most",
    "vision --accelerator abacus": "Lightning cannot train with --accelerator='abacus'",
    "vision --strategy luck": "Lightning cannot train with --accelerator='auto', --devices=1, --strategy='luck'",
    "vision --config switch.json": "--config switch.json: augment must be true or false, got 'yes'",
    "vision --config task.json": "is of a 'sentiment' run, not vision",
    "vision --optimizer adamw --p 1.1": "--p=1.1 is ignored with --optimizer='adamw'",
    "vision --optimizer sgd --potential Lp": "--potential='Lp' is ignored with --optimizer='sgd'",
    "vision --optimizer adamw --momentum 0": "--momentum=0.0 is ignored with --optimizer='adamw'",
    "vision --rest-lr 0.1 --optimizer paper": "--rest-lr=0.1 is ignored with --attention-only=False",
    "vision --config p.json --optimizer sgd": "--p=1.7 is ignored with --optimizer='sgd'",
    "sentiment --heads 3": "dim must be a multiple of heads, got --dim=64 and --heads=3",
    "sentiment --data text.csv --text-column review": "has no column 'review' among",
    "sentiment --data text.csv --max-length 2": "--max-length must be at least 3",
    "lm --tokens word": "argument --tokens: invalid choice: 'word'",
    "lm --data none.txt": "the text none.txt does not exist",
    "lm --data text.csv --context 5000": "tokens, no more than --context=5000",
    "lm --context 1": "--context must be at least 2",
    "lm --dim 6 --heads 4": "dim must be a multiple of twice the heads",
    "lm --profile paper": "invalid choice: 'paper'",
    "vision --p 1": "p must be a finite number greater than 1, got 1.0",
    "vision --p nan": "p must be a finite number greater than 1, got nan",
}


def _beside(line):
    """The same line for two checkpoints, of which the other is a good one."""
    first, *rest = line.split()  # not by shlex, so that what is empty keeps its quotes
    return " ".join([first, "model", *rest])


TABLE = {
    "prune": PRUNED,
    "svm": {
        **{f"{file} {PROBLEM}": message for file, message in FILES.items()},
        **{f"good.npz {PROBLEM} {flag}": message for flag, message in NUMBERS.items()},
        f"good.npz {PROBLEM} --alpha nowhere.npz": "nowhere.npz does not exist",
        f"good.npz {PROBLEM} --alpha array.npy": "alpha must hold integers",
        f"good.npz {PROBLEM} --alpha empty.npy": "cannot be read as an .npy file",
        f"good.npz {PROBLEM} --alpha lacking.npz": "has no array 'alpha'",
        f"good.npz {PROBLEM} --C nan": "C holds nan",
        f"good.npz {PROBLEM} --C -1": "C must be greater",
        f"good.npz {PROBLEM} --norm nuclear --p 3": "has no p",
        f"good.npz {PROBLEM} --tol 0": "tol must be",
        "good.npz --out folder": "--out folder must be an .npz file",
        "good.npz --out nowhere/new.npz": "nowhere does not exist",
        "good.npz --out good.npz": "is the input file good.npz itself",
        "good.npz --out nan.npz": "nan.npz exists and is no output of 'mirrormax svm'",
        "good.npz --out half.npz": "half.npz exists and is no output of 'mirrormax svm'",
    },
    "simulate": {
        **{f"{file} {PROBLEM}": message for file, message in FILES.items()},
        **{f"good.npz {PROBLEM} {flag}": message for flag, message in NUMBERS.items()},
        f"good.npz {PROBLEM} --lr nan": "lr must be",
        f"good.npz {PROBLEM} --lr-v 0.1": "pass --train-readout",
        f"good.npz {PROBLEM} --steps -1": "steps must be",
        f"good.npz {PROBLEM} --steps 99999999999999999999999": "steps must be",
        f"good.npz {PROBLEM} --steps 1000000000000000 --record all": "more memory than there is",
        f"good.npz {PROBLEM} --record some": "--record must be log, all or a whole number",
        "good.npz --out folder": "--out folder must be an .npz file",
        "good.npz --out nowhere/new.npz": "nowhere does not exist",
        "good.npz --out good.npz": "is the input file good.npz itself",
        "good.npz --out nan.npz": "nan.npz exists and is no output of 'mirrormax simulate'",
        "good.npz --out /proc/new.npz": "no file can be made in /proc",
    },
    "train": {**TRAINED, **OF_TRAINING},
    "tune": {
        **{line: message for line, message in TRAINED.items() if "--out" not in line},
        "vision --trials 0": "trials must be",
        "vision --p 2": "unrecognized arguments: --p 2",
        "vision --jobs 0": "--jobs must be at least 1",
        "vision --out empty": "empty is a file",
        "vision --out .": "holds files that are not of a study",
        "vision --optimizers lion": "invalid choice: 'lion'",
        "vision --optimizers": "--optimizers: expected at least one argument",
        "vision --potential Hypentropy": "has no p to tune with --potential=",
        "vision --sparsity 0.5": "has no p to tune with",
        "vision --accelerator abacus": "--accelerator=",
        "vision --attention-only --optimizers md adamw": "--attention-only is ignored with optimizer='adamw'",
    },
    "audit": {**AUDITED, **OF_AUDITS},
    "compare": {f"{_beside(line)} --label-column label": message for line, message in AUDITED.items()},
    "reproduce": {
        "fig99": "'fig99' is not one of",
        "fig2 --jobs 0": "--jobs must be at least 1",
        "fig2 --jobs many": "invalid int value: 'many'",
        "fig2 --out empty": "empty is a file",
        "fig2 --data-dir nowhere": "--data-dir is nowhere",
        "fig2 --data-dir empty": "--data-dir is empty, which is a file",
        "fig2 --profile giant": "invalid choice: 'giant'",
        "fig2 --backend dask": "go together",
        "fig2 --backend dask --scheduler nonsense://x": "no dask scheduler answers at nonsense://x",
    },
    "bench": {
        "coffee": "'coffee' is not one of",
        "svm --data-dir nowhere": "nowhere is not a folder",
        "svm --compare nowhere.jsonl": "the history nowhere.jsonl is no file",
        "svm --compare folder": "the history folder is no file",
        "svm --compare text.csv": "line 1 of text.csv is no run of 'mirrormax bench'",
        "svm --append text.csv": "line 1 of text.csv is no run of 'mirrormax bench'",
        "svm --append list.json": "line 1 of list.json is no run of 'mirrormax bench'",
        "svm --append good.npz": "good.npz is no history of 'mirrormax bench'",
        "svm --append folder": "folder is a folder",
        "svm --append nowhere/new.jsonl": "nowhere does not exist; create it first",
        "svm --append /dev/null": "/dev/null is a device",
        "svm --append /proc/new.jsonl": "no file can be made in /proc",
    },
    "doctor": {
        "--data-dir nowhere": "--data-dir is nowhere",
        "--data-dir empty": "--data-dir is empty, which is a file",
    },
    "explore": {
        "--no-browser --models ''": "--models",
        "--no-browser --models nowhere": "nowhere is not a folder",
        "--no-browser --models pytest": "or an installed package with one model",
        "--no-browser --runs empty": "empty is not a folder",
        "--no-browser --port 65536": "--port must be between 0 and 65535",
        "--no-browser --port x": "invalid int value: 'x'",
    },
}


def giant_npz(path):
    """A sound archive with an array that claims a terabyte of numbers."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (131072, 1024, 1024), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory):
    here = tmp_path_factory.mktemp("bad")
    (here / "folder").mkdir()
    for name in ("empty", "empty.csv", "empty.npy"):
        (here / name).touch()
    rows = "".join(f"a {word} film,{label}\n" for word, label in [("good", 1), ("bad", 0)] * 20)
    texts = {
        "text.csv": f"text,label\n{rows}",
        "blank.csv": "text,label\n ,1\nbad,0\n",
        "ragged.csv": "text,label\na,b,c\n",
        "one.csv": "text,label\na,1\nb,1\n",
        "half.parquet": "PAR1 and no more",
        "list.json": "[]",
        "unknown.json": '{"colour": 1}',
        "type.json": '{"lr": "x"}',
        "nan.json": '{"lr": NaN}',
        "switch.json": '{"augment": "yes"}',
        "task.json": '{"task": "sentiment"}',
        "p.json": '{"p": 1.7}',
        "blank.txt": " \n\n",
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    problem = sphere_problem(seed=0, n=3, T=4, d=4)
    save_problem(here / "good.npz", problem)
    good = {name: getattr(problem, name) for name in ("X", "y", "z", "v")}
    np.save(here / "array.npy", np.arange(9.0))
    (here / "half.npz").write_bytes((here / "good.npz").read_bytes()[:200])
    giant_npz(here / "terabytes.npz")
    for name, change in {
        "nan": {"X": np.full((3, 4, 4), np.nan)},
        "infinite": {"v": np.array([np.inf, 0, 0, 0])},
        "flat": {"X": np.ones((3, 4))},
        "other": {"y": np.ones(5)},
        "words": {"X": np.full((3, 4, 4), "x")},
        "objects": {"X": np.array([{}], dtype=object)},
        "misspelt": {"Alpha": np.zeros(3, int)},
    }.items():
        np.savez(here / f"{name}.npz", **{**good, **change})
    np.savez(here / "pictures.npz", pixels=np.zeros((2, 1, 4, 4), dtype=np.uint8))
    np.savez(here / "lacking.npz", **{name: good[name] for name in "Xyz"})
    _checkpoints(here)
    return here


def _checkpoints(here):
    tokenizer = piece_tokenizer(["a good film", "a bad film"])
    sizes = {"max_length": 8, "dim": 4, "hidden": 4, "blocks": 1, "heads": 1}
    torch.manual_seed(0)
    model = TransformerClassifier(TransformerConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
    for name in ("model", "damaged", "unknown", "giant", "garbled"):
        save_model(here / name, model, ("0", "1"), tokenizer)
    save_model(here / "mute", model, ("0", "1"))
    (here / "garbled" / "config.json").write_text("{")
    (here / "damaged" / "model.safetensors").write_bytes(b"\x07" * 100)
    for name, change in (("unknown", {"colour": 1}), ("giant", {"dim": 2**30, "hidden": 2**30})):
        told = json.loads((here / name / "config.json").read_text())
        told["model"].update(change)
        (here / name / "config.json").write_text(json.dumps(told))


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_every_command_has_a_row():
    assert set(commands.COMMANDS) == set(TABLE)


@pytest.mark.parametrize(
    ("command", "line", "message"),
    [(command, line, message) for command, lines in TABLE.items() for line, message in lines.items()],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(command, line, message, bad_files, monkeypatch, capfd):
    monkeypatch.chdir(bad_files)
    monkeypatch.delenv("MIRRORMAX_DATA", raising=False)
    before = snapshot(bad_files)
    err = refusal(capfd, command, *shlex.split(line))
    assert err.startswith("mirrormax: ")
    assert err.endswith((".\n", "?\n"))
    assert message in err
    assert snapshot(bad_files) == before
