"""Where the explorer listens: on this machine alone, at a port that is free."""

import socket

import pytest

from mirrormax.commands.explore import listen


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


def test_an_answer_is_sent_at_once():
    """Its body would otherwise wait for the browser to acknowledge its head, which takes 40 ms."""
    with listen(0) as listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
