"""Small files that unpack to gigabytes, and endless fields, end a command in one sentence and in bounded memory."""

import json
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from readers import piece_tokenizer

from mirrormax.data import save_problem, sphere_problem
from mirrormax.nets import TransformerClassifier, TransformerConfig, save_model

GIGABYTES = 1.7
MOST_MEMORY = 1.5e9
"""Bytes that a command may hold; importing torch and the libraries around it takes about a third of that."""
CHILD = """
import contextlib, io, json, pathlib, resource, sys
from mirrormax.commands import main

def most_memory():
    # Linux hands ru_maxrss down from the process that started this one, which may have been large; VmHWM is our own.
    status = pathlib.Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

found = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(line.split())
    found[line] = code, err.getvalue(), out.getvalue(), most_memory()
print(json.dumps(found))
"""


def zeros(path, arrays):
    """An ``.npz`` whose float64 arrays of these shapes are zeros, written chunk by chunk."""
    chunk = bytes(2**24)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, shape in arrays.items():
            header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                entry.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
                left = 8 * int(np.prod(shape))
                while left > 0:
                    entry.write(chunk[:left])
                    left -= len(chunk)


def constant_parquet(path):
    """A few kilobytes that declare 150 million rows of one text: dictionary and run lengths, group after group."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows, groups = 1_500_000, 100
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["a good film"]))
    table = pa.table({"text": texts, "label": pa.DictionaryArray.from_arrays(texts.indices, pa.array(["1"]))})
    with pq.ParquetWriter(path, table.schema, use_dictionary=True) as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=rows)


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    here = tmp_path_factory.mktemp("bombs")
    n, T, d = 1, int(GIGABYTES * 1e9 / 8 / 64), 64
    zeros(here / "problem.npz", {"X": (n, T, d), "y": (n,), "z": (n, d), "v": (d,)})
    save_problem(here / "good.npz", sphere_problem(seed=0, n=3, T=4, d=4))
    constant_parquet(here / "texts.parquet")
    with (here / "field.csv").open("w") as file:
        file.write("text,label\na bad film,0\n")
        file.write("film " * 10_000_000)
        file.write(",1\n")
    torch.manual_seed(0)
    tokenizer = piece_tokenizer(["a good film", "a bad film"])
    sizes = {"max_length": 8, "dim": 4, "hidden": 4, "blocks": 1, "heads": 1}
    model = TransformerClassifier(TransformerConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
    save_model(here / "model", model, ("0", "1"), tokenizer)
    return here


LINES = {
    "svm problem.npz --out out.npz": "unpack to",
    "simulate problem.npz --out out.npz": "unpack to",
    "svm good.npz --alpha problem.npz --out out.npz": "unpack to",
    "train sentiment --data texts.parquet --out run": "unpack to",
    "train sentiment --data field.csv --out run": "field larger than field limit",
    "audit model --data texts.parquet --out found": "unpack to",
    "audit model --data field.csv --out found": "field larger than field limit",
}


def test_the_files_are_small_and_claim_gigabytes(bombs):
    pq = pytest.importorskip("pyarrow.parquet")
    assert (bombs / "problem.npz").stat().st_size < 10e6
    with zipfile.ZipFile(bombs / "problem.npz") as archive:
        assert sum(entry.file_size for entry in archive.infolist()) > MOST_MEMORY
    assert (bombs / "texts.parquet").stat().st_size < 1e6
    assert 2 * 8 * pq.ParquetFile(bombs / "texts.parquet").metadata.num_rows > MOST_MEMORY
    assert (bombs / "field.csv").stat().st_size >= 50e6


@pytest.fixture(scope="module")
def ended(bombs):
    """How each line ended: exit code, stderr, stdout, and the most memory until then of the process that ran all."""
    before = {path: path.stat().st_mtime_ns for path in bombs.rglob("*")}
    command = [sys.executable, "-c", CHILD, json.dumps(list(LINES))]
    done = subprocess.run(command, check=True, cwd=bombs, stdout=subprocess.PIPE, text=True)
    assert {path: path.stat().st_mtime_ns for path in bombs.rglob("*")} == before  # nothing was written
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell the most memory of a process")
@pytest.mark.parametrize("line", LINES)
def test_a_command_ends_in_one_sentence_and_little_memory(ended, line):
    code, err, out, memory = ended[line]
    assert code == 2, err
    assert err.startswith("mirrormax: ")
    assert err.count("\n") == 1
    assert LINES[line] in err
    assert out == ""
    assert memory < MOST_MEMORY
