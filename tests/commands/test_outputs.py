"""``--out`` of the commands that write one file: nothing is replaced but their own earlier outputs."""

import os
import stat

import numpy as np
import pytest

from mirrormax import commands
from mirrormax.data import save_problem, sphere_problem

COMMANDS = {"svm": ("svm", "--p", "1.5", "--quiet"), "simulate": ("simulate", "--steps", "5", "--quiet")}


@pytest.fixture(params=COMMANDS)
def command(request):
    return request.param


@pytest.fixture
def attempt(command, tmp_path, monkeypatch, capsys):
    """Runs the command into a file; gives the exit code and what it says."""
    monkeypatch.chdir(tmp_path)
    save_problem(tmp_path / "problem.npz", sphere_problem(seed=0, n=3, T=4, d=4))

    def run(out, problem="problem.npz", *more):
        name, *options = COMMANDS[command]
        code = commands.main([name, problem, *options, "--out", out, *more])
        return code, capsys.readouterr().err

    return run


def everything(folder):
    """All that lies in a folder, with content where there is any."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) else os.readlink(path) if stat.S_ISLNK(mode) else None
        found[path] = (mode, content)
    return found


def test_an_earlier_output_of_the_same_command_is_replaced(attempt, tmp_path):
    assert attempt("out.npz") == (0, "")
    first = (tmp_path / "out.npz").read_bytes()
    (tmp_path / "problem.npz").unlink()
    save_problem(tmp_path / "problem.npz", sphere_problem(seed=1, n=3, T=4, d=4))
    assert attempt("out.npz") == (0, "")
    assert (tmp_path / "out.npz").read_bytes() != first


def links(folder):
    (folder / "thesis.npz").write_bytes(b"years of work")
    (folder / "out.npz").symlink_to("thesis.npz")


def link_to_input(folder):
    (folder / "out.npz").symlink_to("problem.npz")


def hard_link_to_input(folder):
    os.link(folder / "problem.npz", folder / "out.npz")


def dangling(folder):
    (folder / "out.npz").symlink_to("not-yet.npz")


def other_arrays(folder):
    np.savez(folder / "out.npz", W=np.ones((2, 2)), accuracy=0.9)


def no_archive(folder):
    (folder / "out.npz").write_text("notes")


def half_an_archive(folder):
    (folder / "out.npz").write_bytes((folder / "problem.npz").read_bytes()[:100])


def empty(folder):
    (folder / "out.npz").touch()


def directory(folder):
    (folder / "out.npz").mkdir()


def fifo(folder):
    os.mkfifo(folder / "out.npz")


def device(folder):
    try:
        os.mknod(folder / "out.npz", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes device nodes")


THERE = {
    links: "is a link",
    link_to_input: "is the input file problem.npz itself",
    hard_link_to_input: "is the input file problem.npz itself",
    dangling: "is a link",
    other_arrays: "is no output of",
    no_archive: "is no output of",
    half_an_archive: "is no output of",
    empty: "is no output of",
    directory: "is a folder",
    fifo: "is a device, pipe or socket",
    device: "is a device, pipe or socket",
}


@pytest.mark.parametrize("prepare", THERE, ids=lambda prepare: prepare.__name__)
def test_what_is_there_already_stays(attempt, tmp_path, prepare):
    prepare(tmp_path)
    before = everything(tmp_path)
    code, said = attempt("out.npz")
    assert code == 2
    assert "out.npz" in said
    assert THERE[prepare] in said
    assert said.count("\n") == 1
    assert everything(tmp_path) == before


def test_the_input_by_another_name_stays(attempt, tmp_path):
    (tmp_path / "folder").mkdir()
    before = everything(tmp_path)
    code, said = attempt("folder/../problem.npz", str(tmp_path / "problem.npz"))
    assert code == 2
    assert "itself; give another name" in said
    assert everything(tmp_path) == before


def test_the_output_of_another_command_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_problem(tmp_path / "problem.npz", sphere_problem(seed=0, n=3, T=4, d=4))
    for first, second in (("svm", "simulate"), ("simulate", "svm")):
        out = f"{first}.npz"
        (name, *options), (other, *others) = COMMANDS[first], COMMANDS[second]
        assert commands.main([name, "problem.npz", *options, "--out", out]) == 0
        assert commands.main([other, "problem.npz", *others, "--out", out]) == 2
        assert f"is no output of 'mirrormax {second}'" in capsys.readouterr().err


def test_the_file_of_chosen_tokens_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_problem(tmp_path / "problem.npz", sphere_problem(seed=0, n=3, T=4, d=4))
    np.savez(tmp_path / "alpha.npz", alpha=np.zeros(3, int))
    before = everything(tmp_path)
    assert commands.main(["svm", "problem.npz", "--alpha", "alpha.npz", "--out", "alpha.npz"]) == 2
    assert "alpha.npz itself" in capsys.readouterr().err
    assert everything(tmp_path) == before
