"""``mirrormax doctor``: findings in words, and an exit code that tells."""

from mirrormax import commands
from mirrormax.commands import doctor


def test_the_doctor_finds_what_this_suite_needs_and_everything_works(capsys, tmp_path):
    (tmp_path / "imdb").mkdir()
    assert commands.main(["doctor", "--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "torch" in out
    assert f"data folder            {tmp_path}" in out
    assert "IMDb                   imdb" in out
    assert "CIFAR-10               —" in out
    assert out.count("ok, ") == len(doctor.CHECKS)


def test_a_failing_check_is_named_and_the_exit_code_is_1(capsys, monkeypatch):
    def broken():
        raise OSError("no space left")

    monkeypatch.setitem(doctor.CHECKS, "a plot", broken)
    assert commands.main(["doctor"]) == 1
    assert "FAILED: OSError: no space left" in capsys.readouterr().out


def test_a_missing_package_is_no_failure_but_is_told_with_its_extra(capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["no-such-package>=1; extra == 'fast'"])
    assert commands.main(["doctor"]) == 0
    assert "pip install 'mirrormax[fast]'" in capsys.readouterr().out
