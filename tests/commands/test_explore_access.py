"""The explorer as a process: who gets an answer, and what it says of clients that leave or are slow."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

ASK = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
HASTY = """
import sys
from mirrormax.app import guards, server
guards.PATIENCE = server.PATIENCE = 0.5
from mirrormax.commands import main
raise SystemExit(main(["explore", "--no-browser", "--port", "0", *sys.argv[1:]]))
"""


def answer(program, address):
    return subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def explorer(folder):
    """Its address with the token; it must end well and without a word on stderr."""
    command = [sys.executable, "-c", HASTY, "--runs", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://\S+", server.stdout.readline())[0], server.pid
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert server.stderr.read() == ""


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir(mode=0o700)
    (folder / "report.html").write_text("secret results")
    return folder


# A process of its own, as a fork of this one would have the threads of whatever other tests have imported. Another user
# may not be allowed to read where Python keeps its modules, so all that asking needs comes before the change.
ASK_AS_NOBODY = (
    """
import os, urllib.request
"".encode("idna")
os.setgid(65534)
os.setuid(65534)
"""
    + ASK
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_user_of_the_machine_reads_nothing(private):
    with explorer(private) as (address, pid):
        base, _, query = address.partition("?")
        for place in ("", "api/runs", "runs/report.html"):
            assert answer(ASK_AS_NOBODY, f"{base}{place}").startswith("403 ")
        assert answer(ASK_AS_NOBODY, address) == "200\n"  # whom the owner gave the address
        assert answer(ASK, address) == "200\n"
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert query.partition("=")[2].encode() not in file.read()


def connect(address):
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def is_closed(connection):
    """Whether the other side has hung up, after what it had to say."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The address of one explorer for all slow clients; what it says of any of them fails the last test."""
    with explorer(tmp_path_factory.mktemp("results")) as (address, _):
        yield address


HEAD = (
    "POST /api/geometry?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Content-Type: application/json\r\nContent-Length: 999\r\n"
)


@pytest.mark.parametrize(
    "beginning",
    ["", "GET / HT", "GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n", HEAD + "\r\n", HEAD + '\r\n{{"p": 1'],
    ids=["silence", "half a line", "half a head", "no body", "half a body"],
)
def test_slow_clients_are_hung_up_on_without_a_word(running, beginning):
    query = running.partition("?")[2]
    with connect(running) as connection:
        connection.sendall(beginning.format(query=query).encode())
        assert is_closed(connection)
    assert answer(ASK, running) == "200\n"


def test_clients_that_leave_are_let_go_without_a_word(private):
    with explorer(private) as (address, _):
        query = address.partition("?")[2]
        for beginning in (
            HEAD + "\r\n",
            HEAD + '\r\n{{"p"',
            "GET /runs/report.html?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            with connect(address) as connection:
                connection.sendall(beginning.format(query=query).encode())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leave by a reset
        time.sleep(0.5)
        own = subprocess.run([sys.executable, "-c", ASK, address], capture_output=True, text=True, check=True)
        assert own.stdout == "200\n"
