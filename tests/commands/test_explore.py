"""Starting the explorer: what is refused before anything is served, and that it listens to this machine alone."""

import argparse
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from command_line import refusal

from mirrormax import commands
from mirrormax.commands.explore import add_arguments, listen


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--models", "nowhere"], "--models nowhere is not a folder"),
        (
            ["--models", "pytest"],
            "--models pytest is not a folder, a GGUF file, or an installed package with one model",
        ),
        (["--runs", "nowhere"], "--runs nowhere is not a folder"),
        (["--port", "70000"], "--port must be between 0 and 65535, got 70000"),
        (["--port", "http"], "invalid int value: 'http'"),
    ],
)
def test_bad_input_is_one_sentence(options, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal(capsys, "explore", "--no-browser", *options)


def test_a_port_in_use_is_named():
    with listen(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port} is in use"):
            listen(port)


def test_without_a_port_a_free_one_is_found(monkeypatch):
    with listen(0) as first:
        monkeypatch.setattr("mirrormax.commands.explore.USUAL_PORT", first.getsockname()[1])
        with listen(None) as second:
            assert second.getsockname()[0] == "127.0.0.1"
            assert second.getsockname()[1] != first.getsockname()[1]


def test_a_missing_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert commands.main(["explore", "--no-browser"]) == 2
    assert "pip install 'mirrormax[explore]'" in capsys.readouterr().err


def test_it_serves_until_interrupted(tmp_path):
    command = [sys.executable, "-m", "mirrormax", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{32}", server.stdout.readline())[0]
            with urllib.request.urlopen(address, timeout=60) as page:
                assert b"mirrormax" in page.read()
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert server.stderr.read() == ""


def test_arguments_have_defaults():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert vars(parser.parse_args([])) == {"models": None, "runs": None, "port": None, "no_browser": False}


def test_an_answer_is_sent_at_once():
    """Its body would otherwise wait for the browser to acknowledge its head, which takes 40 ms."""
    with listen(0) as listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
