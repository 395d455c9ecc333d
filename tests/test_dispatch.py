"""The command that runs the numerical tests under other instruction sets."""

import subprocess

import dispatch
import pytest


def test_only_levels_that_the_processor_has_are_run(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu pni avx avx2 fma\nbugs\t\t:\n")
    flags = dispatch.processor_flags(info)
    assert dispatch.available(flags) == ["sse3", "avx", "avx2", "zen"]
    assert dispatch.available(set()) == []
    assert dispatch.processor_flags(tmp_path / "nothing") == set()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1)])
def test_one_failing_level_fails_the_command(code, expected, monkeypatch, capsys):
    calls = []

    def run(command, env, **_):
        calls.append((env["OPENBLAS_CORETYPE"], command))
        return subprocess.CompletedProcess(command, code if len(calls) == 2 else 0)

    monkeypatch.setattr(dispatch.subprocess, "run", run)
    monkeypatch.setattr(dispatch, "processor_flags", lambda: {"pni", "avx", "avx2", "fma"})
    assert dispatch.main(["--level", "sse3", "--level", "avx2", "--level", "avx512", "-x"]) == expected
    assert [name for name, _ in calls] == ["Prescott", "Haswell"]
    assert calls[0][1][-1] == "-x"
    assert "cannot run avx512" in capsys.readouterr().out
