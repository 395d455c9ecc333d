"""What is left of a killed writer goes, and what is a user's stays."""

import threading

from mirrormax.report.audit.writing import AUDIT, COMPARISON, LOCK, writing

NAMES = (*AUDIT, *COMPARISON)


def half_written(folder):
    (folder / "a").mkdir(parents=True)
    names = (".mirrormax-ab12cd_e-heads.csv", ".mirrormax-00000000-audit.json", "a/.mirrormax-zzzzzzzz-audit.json")
    for name in names:
        (folder / name).write_text("half")


def hidden(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(".*") if path.name != LOCK)


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    with writing(tmp_path, NAMES):
        pass
    half_written(tmp_path)
    with writing(tmp_path, NAMES):
        assert hidden(tmp_path) == []


def test_other_files_stay(tmp_path):
    others = (
        ".heads-ab12cd_e.csv",
        ".heads.csv",
        ".heads-short.csv",
        ".notes-12345678.csv",
        "heads-12345678.csv",
        ".env",
    )
    for _ in range(2):
        with writing(tmp_path, NAMES):
            for name in others:
                (tmp_path / name).write_text("mine")
    assert all((tmp_path / name).read_text() == "mine" for name in others)


def test_a_second_writer_waits_and_leaves_the_first_ones_temporaries_alone(tmp_path):
    temporary, entered = tmp_path / ".mirrormax-ab12cd_e-heads.csv", threading.Event()

    def second():
        with writing(tmp_path, NAMES):
            entered.set()

    with writing(tmp_path, NAMES):
        temporary.write_text("being written")
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.2)
        assert temporary.exists()
    thread.join(10)
    assert entered.is_set()
    assert not temporary.exists()
