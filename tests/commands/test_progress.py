"""Progress: a bar on a terminal, plain lines in a log, and nothing where nothing is asked for."""

import io
import itertools
import os
import pty
import re
import subprocess
import sys

from mirrormax.commands import _heartbeat, _shared

SHOW = """
import sys, time
from mirrormax.commands import _shared
with _shared.progress("audit", quiet=False) as meter:
    for stage, total in (("reading", 4), ("solving", 8)):
        for done in range(total + 1):
            meter.show(stage, done, total)
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
import sys, time
from mirrormax.commands import _heartbeat
_heartbeat.SILENCE = _heartbeat.LOOK = 0.05
with _heartbeat.heartbeat("audit", wanted=True):
    time.sleep(0.4)
    print("reading")
    sys.stdout.write("begun")
    time.sleep(0.4)
    print(" and ended")
"""


def test_a_silent_command_gives_a_sign_of_life_that_the_next_word_replaces():
    sent = in_a_terminal(SILENT, columns=60)
    before, _, after = sent.partition("reading")
    assert before.count("mirrormax audit: loading … 0 s") >= 2
    assert before.endswith("\r\x1b[K")
    assert after.replace("\r\n", "\n") == "\nbegun and ended\n"  # a line that is begun is nobody else's


def test_no_silence_is_longer_than_a_second(monkeypatch):
    """By a clock that waiting alone moves on, with words between two looks at it."""
    now, words, spoken = 0.0, [1.0, 3.21, 3.99], [0.0]

    class Terminal(io.StringIO):
        def write(self, text):
            spoken.append(now)

    monkeypatch.setattr(_heartbeat.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", Terminal())
    beat = _heartbeat.Heartbeat("audit")

    def wait(seconds):
        nonlocal now
        end = now + seconds
        while words and words[0] <= end:
            now = words.pop(0)
            beat.heard("a line\n")
            spoken.append(now)
        now = end
        return now > 6

    monkeypatch.setattr(beat._ended, "wait", wait)
    beat.run()
    assert not words
    assert max(after - before for before, after in itertools.pairwise(spoken)) < 1


def clocked(monkeypatch, seconds):
    """Time passes by as many seconds at every look at the clock."""
    now = [0.0]

    def monotonic():
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(_shared.time, "monotonic", monotonic)


def test_a_log_gets_plain_lines(monkeypatch, capsys):
    clocked(monkeypatch, seconds=6.0)
    with _shared.progress("tune", quiet=False) as meter:
        for done in range(5):
            meter.show("trials", done, 4)
        meter.show("drawing", 0, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("mirrormax tune: trials ")
    assert all(re.fullmatch(r"mirrormax tune: (trials|drawing) \d+%, after \d+ s", line) for line in lines)
    assert lines[-1].startswith("mirrormax tune: drawing 0%")
    assert 2 <= len(lines) < 6


def test_short_work_leaves_a_log_empty(monkeypatch, capsys):
    clocked(monkeypatch, seconds=0.001)
    with _shared.progress("simulate", quiet=False) as meter:
        for done in range(1000):
            meter.show("simulate", done, 1000)
    assert capsys.readouterr().err == ""


def test_quiet_says_nothing(monkeypatch, capsys):
    clocked(monkeypatch, seconds=60)
    with _shared.progress("simulate", quiet=True) as meter:
        meter.show("simulate", 1, 2)
    assert capsys.readouterr().err == ""
