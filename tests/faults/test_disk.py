"""A full disk, a folder that cannot be written to, damaged results: one sentence, nothing lost, nothing trusted."""

import errno
import os
import shutil
import tempfile

import pytest

from mirrormax import commands
from mirrormax._files import replacing, save_json

from .runs import COMMANDS, contents

pytestmark = pytest.mark.timeout(1800)  # all is imported once more, on a machine that may be busy


@pytest.mark.parametrize(
    ("name", "room"),
    [
        ("train", 12_000),  # bytes: the weights, but no checkpoint
        ("svm", 500),
        pytest.param("train", 500, marks=pytest.mark.slow),  # not even the configuration
        pytest.param("train", 5_000, marks=pytest.mark.slow),  # the configuration, but no weights
        pytest.param("reproduce", 2_000, marks=pytest.mark.slow),
        pytest.param("audit", 1_000, marks=pytest.mark.slow),
        pytest.param("tune", 5_000, marks=pytest.mark.slow),
    ],
)
def test_no_room_on_the_disk_is_one_sentence_and_the_next_run_ends_as_it_should(name, room, launch, whole, begin):
    folder = begin()
    before = contents(folder)
    ended = launch(*COMMANDS[name], cwd=folder, largest_file=room)
    assert ended.refused, ended.err
    assert "make room on the disk" in ended.err
    assert {file: content for file, content in contents(folder).items() if file in before} == before
    assert not [path for path in folder.rglob(".*") if path.name not in (".lock", ".mirrormax.lock")]
    again = launch(*COMMANDS[name], cwd=folder)
    assert (again.code, again.err) == (0, "")
    assert contents(folder) == whole(name)[0]


@pytest.mark.parametrize("name", ["train", "reproduce", "svm"])
def test_a_place_that_cannot_be_written_to_is_one_sentence(name, launch, begin):
    """/proc refuses root too, which ignores permissions."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    folder = begin()
    before = contents(folder)
    out = "/proc/solution.npz" if name == "svm" else "/proc/out"
    ended = launch(*COMMANDS[name][:-1], out, cwd=folder)
    assert ended.refused, ended.err
    assert contents(folder) == before


def test_a_read_only_folder_is_one_sentence(tmp_path, monkeypatch, capsys):
    def read_only(*_, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(options.get("dir")))

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    assert commands.main(["reproduce", "fig2", "--jobs", "1", "--quiet", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "Permission denied" in err
    assert "check the path and its permissions" in err
    assert err.count("\n") == 1


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.json"
    save_json(path, {"old": 1})
    before = path.read_bytes()

    def write(error, *failures):
        with replacing(path, *failures) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(OSError, match="No space left on device") as caught:
        write(OSError(errno.ENOSPC, "No space left on device"))
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match=r"a.json could not be written \(it broke\); make room on the disk"):
        write(RuntimeError("it broke.\nmore"), RuntimeError)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def halve(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.fixture
def finished(launch, tmp_path, inputs):
    """A finished run in a folder of its own."""

    def make(name):
        folder = shutil.copytree(inputs, tmp_path / "finished")
        assert launch(*COMMANDS[name], cwd=folder).code == 0
        return folder

    return make


DAMAGES = {
    "reproduce one": ("data.npz", "mirrormax.json", "measurements.json", "config.json"),
    "train": ("mirrormax.json", "model/model.safetensors"),
}


@pytest.mark.parametrize("damages", [(flip,), pytest.param((halve, empty), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["train", pytest.param("reproduce one", marks=pytest.mark.slow)])
def test_a_damaged_result_is_refused_or_done_again_and_never_trusted(name, damages, launch, whole, finished, attack):
    folder = finished(name)
    for file in DAMAGES[name]:
        for damage in damages:
            path = next(iter(sorted((folder / "out").rglob(file))))
            sound = path.read_bytes()
            with attack(f"{name}, {file}, {damage.__name__}"):
                damage(path)
                hurt = path.read_bytes()
                ended = launch(*COMMANDS[name], cwd=folder)
                if ended.refused:
                    assert path.read_bytes() == hurt
                    path.write_bytes(sound)
                    ended = launch(*COMMANDS[name], cwd=folder)
                assert (ended.code, ended.err) == (0, "")
                assert contents(folder) == whole(name)[0]


def test_a_damaged_problem_is_refused(launch, begin):
    folder = begin()
    halve(folder / "problem.npz")
    assert launch(*COMMANDS["svm"], cwd=folder).refused
    assert not (folder / "solution.npz").exists()


def test_a_damaged_checkpoint_is_refused(launch, begin):
    folder = begin()
    for file, damage in (("model.safetensors", flip), ("config.json", halve), ("tokenizer.json", empty)):
        sound = (folder / "checkpoint" / file).read_bytes()
        damage(folder / "checkpoint" / file)
        assert launch(*COMMANDS["audit"], cwd=folder).refused
        (folder / "checkpoint" / file).write_bytes(sound)
    assert not (folder / "out").exists()


def test_a_training_with_a_damaged_place_to_go_on_from_is_refused_and_left_alone(launch, begin, whole):
    """Killed late: from then on there are a checkpoint and the best weights to go on from."""
    folder = begin()
    launch(*COMMANDS["train"], cwd=folder, die_at=whole("train")[2] // 2)
    for file in ("resume.ckpt", "best.safetensors"):
        path = folder / "out" / file
        sound = path.read_bytes()
        halve(path)
        hurt = path.read_bytes()
        ended = launch(*COMMANDS["train"], cwd=folder)
        assert ended.refused, ended.err
        assert path.read_bytes() == hurt
        path.write_bytes(sound)
    assert launch(*COMMANDS["train"], cwd=folder).code == 0
    assert contents(folder) == whole("train")[0]
