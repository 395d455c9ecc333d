"""Readers on bytes that nobody wrote on purpose: an answer, or our own error with one sentence.

Inputs are arbitrary bytes, and sound files with some bytes changed, cut out, put in or cut off.
"""

import io
import json
import os
import warnings
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import piece_tokenizer

from mirrormax.commands.train import _read_choices
from mirrormax.data import load_problem, load_text, load_tokenizer, read_npz, save_problem, sphere_problem
from mirrormax.data.images import read_batch
from mirrormax.nets import TransformerClassifier, TransformerConfig, load_model, save_model
from mirrormax.training import PROFILES, SentimentTraining, with_choices

QUICK, SLOW = 60, 13_000  # examples a reader


def _choices(path):
    return with_choices(PROFILES["sentiment"]["small"], _read_choices(path, "sentiment"))


def _checkpoint(path):
    return load_model(path.parent)


READERS = {
    "npz": ("a.npz", read_npz),
    "problem": ("a.npz", load_problem),
    "csv": ("a.csv", load_text),
    "parquet": ("a.parquet", load_text),
    "cifar": ("a.bin", lambda path: read_batch(path, (10,))),
    "vocab": ("vocab.txt", load_tokenizer),
    "checkpoint": ("config.json", _checkpoint),
    "choices": ("a.json", _choices),
}


def _parquet():
    file = io.BytesIO()
    pq.write_table(pa.table({"text": ["a good film", "a bad film"], "label": ["good", "bad"]}), file)
    return file.getvalue()


def _sound(name, folder):
    """A file that its reader takes."""
    if name in ("npz", "problem"):
        save_problem(folder / "sound.npz", sphere_problem(seed=0, n=1, T=2, d=2))
        return (folder / "sound.npz").read_bytes()
    if name == "checkpoint":
        tokenizer = piece_tokenizer(["a good film"])
        sizes = {"max_length": 4, "dim": 2, "hidden": 2, "blocks": 1, "heads": 1}
        config = TransformerConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)
        save_model(folder, TransformerClassifier(config), ("bad", "good"))
        return (folder / "config.json").read_bytes()
    return {
        "csv": b'text,label\n"a good, warm film",good\na bad film,bad\n',
        "parquet": _parquet(),
        "cifar": bytes([3, *[7] * 3072]) * 2,
        "vocab": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##é\n".encode(),
        "choices": json.dumps(asdict(SentimentTraining())).encode(),
    }[name]


def damaged(sound):
    """Sound bytes with up to four changes, or none."""
    place = st.integers(0, len(sound))
    pieces = st.binary(max_size=6) | st.sampled_from(
        [b'"', b"\n", b"\0", b"\xff\xfe", b",", b"NaN", b"1e999", b"-1", b"null", b"{", b"]", b"99999999999999999999"]
    )

    def change(edits, length):
        found = sound
        for start, removed, piece in edits:
            found = found[:start] + piece + found[start + removed :]
        return found[:length]

    edits = st.lists(st.tuples(place, st.integers(0, 8), pieces), max_size=4)
    return st.builds(change, edits, st.just(10**9) | place)


def attempt(name, path, content):
    """Read it; True if it was taken, and False if it was refused with one sentence."""
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            READERS[name][1](path)
    except (ValueError, TypeError, OSError) as error:
        text = str(error)
        assert "\n" not in text, text
        assert text.endswith((".", "?")), text
        return False
    return True


def fuzz(name, folder, examples):
    """How many inputs were tried, and how many of them were taken."""
    path, sound, count = folder / READERS[name][0], _sound(name, folder), [0, 0]
    assert attempt(name, path, sound), "the sound file is refused"

    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(sound) | st.binary(max_size=300))
    def tried(content):
        count[0] += 1
        count[1] += attempt(name, path, content)

    tried()
    return count


@pytest.fixture
def in_memory(tmp_path):
    """A folder for many small writes: in memory where there is one, lest the disk should set the pace."""
    shared = Path("/dev/shm")
    folder = shared / f"mirrormax-{os.getpid()}" if os.access(shared, os.W_OK) else tmp_path / "fuzz"
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_its_file_or_refuses_in_one_sentence(name, in_memory):
    tried, _ = fuzz(name, in_memory, QUICK)
    assert tried >= QUICK // 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_inputs_crash_no_reader(in_memory, capsys):
    total = 0
    for name in READERS:
        tried, taken = fuzz(name, in_memory, SLOW)
        total += tried
        with capsys.disabled():
            print(f"\n{name}: {tried} inputs, {taken} of them taken", end="")
    with capsys.disabled():
        print(f"\n{total} inputs in all")
    assert total >= 100_000
