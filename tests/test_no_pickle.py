"""Nothing that a file holds is ever executed: no code of ours asks for it, and malicious files are refused."""

import ast
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from readers import piece_tokenizer

import mirrormax
from mirrormax import commands
from mirrormax.data import load_images, load_problem, read_npz
from mirrormax.nets import TransformerClassifier, TransformerConfig, load_model, save_model

ROOT = Path(mirrormax.__file__).parent
EXECUTING = ("eval", "exec", "execfile", "__import__")
UNPICKLING = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml")
ALLOWED = {
    ("training/run.py", "import pickle"): "names the error by which torch refuses a checkpoint; nothing is loaded",
}


def dangers(tree):
    """What could execute a file's contents, as (line, what) pairs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {a.name}") for a in node.names if a.name.split(".")[0] in UNPICKLING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLING:
            yield node.lineno, f"import {node.module}"
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node):
    name = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if name in EXECUTING:
        yield node.lineno, name
    if name == "torch.load" and given.get("weights_only") != "True":
        yield node.lineno, "torch.load without weights_only=True"
    if name == "np.load" and given.get("allow_pickle") != "False":
        yield node.lineno, "np.load without allow_pickle=False"
    if given.get("allow_pickle", "False") not in ("False", "allow_pickle", "args.allow_pickle"):
        yield node.lineno, f"allow_pickle={given['allow_pickle']}"
    if given.get("trust_remote_code", "False") != "False":
        yield node.lineno, f"trust_remote_code={given['trust_remote_code']}"
    if name.endswith("joblib.load") or name in ("read_pickle", "pd.read_pickle"):
        yield node.lineno, name


def test_no_code_of_ours_executes_what_a_file_holds():
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for path in ROOT.rglob("*.py")
        for _, what in dangers(ast.parse(path.read_text("utf-8")))
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from yaml import load",
        "eval(x)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "f(p, allow_pickle=True)",
        "joblib.load(p)",
        "AutoModel.from_pretrained(p, trust_remote_code=True)",
    ],
)
def test_the_search_sees_what_it_is_for(code):
    assert list(dangers(ast.parse(code)))


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def bomb(tmp_path):
    """A payload that is seen to work where it is asked for, and not to have worked at the end of the test."""
    tried = tmp_path / "tried"
    pickle.loads(pickle.dumps(Bomb(tried)))
    assert tried.is_dir()
    yield Bomb(tmp_path / "boom")
    assert not (tmp_path / "boom").exists()


def refused(read, *arguments):
    with pytest.raises((ValueError, OSError)) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_malicious_npz_is_refused(bomb, tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, X=np.array([bomb], dtype=object))
    refused(read_npz, path)
    refused(load_problem, path)
    path.write_bytes(pickle.dumps(bomb))
    refused(read_npz, path)


@pytest.mark.parametrize("content", ["pickle", "torch"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_malicious_checkpoint_is_refused(bomb, tmp_path, name, content):
    tokenizer = piece_tokenizer(["a good film"])
    config = TransformerConfig(vocab_size=tokenizer.get_vocab_size(), max_length=8, dim=4, hidden=4, blocks=1, heads=1)
    folder = save_model(tmp_path / "model", TransformerClassifier(config), ("bad", "good"), tokenizer)
    (folder / name).write_bytes(pickle.dumps(bomb))
    if content == "torch":
        torch.save(bomb, folder / name)
    refused(load_model, folder)


@pytest.mark.parametrize("source", ["cifar10", "cifar100"])
def test_a_cifar_pickle_is_refused(bomb, tmp_path, source):
    folder = tmp_path / {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[source]
    folder.mkdir()
    for name in ("data_batch_1.bin", "train.bin", "test_batch.bin", "test.bin"):
        (folder / name).write_bytes(pickle.dumps({b"data": bomb, b"labels": [1, 2]}))
    refused(load_images, source, tmp_path)


def test_the_pickled_cifar_archive_is_not_even_looked_at(bomb, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": bomb}))
    refused(load_images, "cifar10", tmp_path)


@pytest.mark.parametrize("command", ["svm", "simulate"])
def test_a_command_given_a_malicious_file_says_one_sentence(bomb, tmp_path, capsys, command):
    np.savez(tmp_path / "evil.npz", X=np.array([bomb], dtype=object))
    assert commands.main([command, str(tmp_path / "evil.npz"), "--out", str(tmp_path / "out.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
