"""Progress: a bar on a terminal, plain lines in a log, and nothing where nothing is asked for."""

import os
import pty
import re
import subprocess
import sys

from mirrormax.commands import _shared

SHOW = """
import sys, time
from mirrormax.commands import _shared
with _shared.progress("audit", quiet=False) as show:
    for stage, total in (("reading", 4), ("solving", 8)):
        for done in range(total + 1):
            show(stage, done, total)
            time.sleep(0.02)
"""


def in_a_terminal(code, columns):
    """What a terminal of this width is sent."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=slave, stdout=slave, env=environment) as process:
        os.close(slave)
        content = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            content += part
    os.close(master)
    assert process.returncode == 0, content
    return content.decode()


def test_a_bar_fits_the_terminal():
    columns = 60
    sent = in_a_terminal(SHOW, columns)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert any("reading" in line and "%" in line for line in lines)
    assert any("solving" in line for line in lines)
    assert max(map(len, lines)) <= columns


SILENT = """
import time
from mirrormax import commands
commands.SILENCE = 0.05
for seconds in (0.5, 0):
    with commands.sign_of_life("audit", wanted=True):
        time.sleep(seconds)
"""


def test_a_silent_command_gives_one_sign_of_life_and_a_quick_one_none():
    assert in_a_terminal(SILENT, columns=60).split("\r\n") == ["mirrormax audit: at work …", ""]


def clocked(monkeypatch, seconds):
    """Time passes by as many seconds at every look at the clock."""
    now = [0.0]

    def monotonic():
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(_shared.time, "monotonic", monotonic)


def test_a_log_gets_plain_lines(monkeypatch, capsys):
    clocked(monkeypatch, seconds=6.0)
    with _shared.progress("tune", quiet=False) as show:
        for done in range(5):
            show("trials", done, 4)
        show("drawing", 0, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("mirrormax tune: trials ")
    assert all(re.fullmatch(r"mirrormax tune: (trials|drawing) \d+%, after \d+ s", line) for line in lines)
    assert lines[-1].startswith("mirrormax tune: drawing 0%")
    assert 2 <= len(lines) < 6


def test_short_work_leaves_a_log_empty(monkeypatch, capsys):
    clocked(monkeypatch, seconds=0.001)
    with _shared.progress("simulate", quiet=False) as show:
        for done in range(1000):
            show("simulate", done, 1000)
    assert capsys.readouterr().err == ""


def test_quiet_says_nothing(monkeypatch, capsys):
    clocked(monkeypatch, seconds=60)
    with _shared.progress("simulate", quiet=True) as show:
        show("simulate", 1, 2)
    assert capsys.readouterr().err == ""
