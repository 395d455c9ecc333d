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


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Address and process of one explorer for all clients, on a private folder; a word of it fails the last test."""
    folder = tmp_path_factory.mktemp("private") / "results"
    folder.mkdir(mode=0o700)
    (folder / "report.html").write_text("secret results")
    with explorer(folder) as found:
        yield found


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
def test_another_user_of_the_machine_reads_nothing(running):
    address, pid = running
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


HEAD = (
    "POST /api/geometry?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Content-Type: application/json\r\nContent-Length: 999\r\n"
)


SLOW = {
    "silence": "",
    "half a line": "GET / HT",
    "half a head": "GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "no body": HEAD + "\r\n",
    "half a body": HEAD + '\r\n{{"p": 1',
}


def test_slow_clients_are_hung_up_on_without_a_word(running):
    """All at once, as each is given its time."""
    address, _ = running
    query = address.partition("?")[2]
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(connect(address)) for name in SLOW}
        for name, client in clients.items():
            client.sendall(SLOW[name].format(query=query).encode())
        for name, client in clients.items():
            assert is_closed(client), name
    assert answer(ASK, address) == "200\n"


def test_clients_that_leave_are_let_go_without_a_word(running):
    address, _ = running
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
    assert answer(ASK, address) == "200\n"
