"""Listening sockets: every address of a host, taken ports, and connections that wait while a process is replaced."""

from __future__ import annotations

import socket

import pytest

from blazr_site.listeners import open_listeners
from inference.errors import Unavailable


def _open(host: str, port: int = 0) -> tuple[socket.socket, ...]:
    found = open_listeners(host, port)
    for listener in found:
        listener.close()
    return found


def test_a_taken_port_and_a_host_that_is_not_local_are_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unavailable, match="can't be listened on"):
            open_listeners("127.0.0.1", taken.getsockname()[1])
    for host in ("a\0b", "x" * 300, "no-such-host.invalid", "192.0.2.1"):
        with pytest.raises(Unavailable, match="can't be listened on"):
            open_listeners(host, 0)


def test_all_addresses_of_a_name_have_the_same_port():
    listeners = open_listeners("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
        assert "127.0.0.1" in {listener.getsockname()[0] for listener in listeners}
    finally:
        for listener in listeners:
            listener.close()


def test_nothing_listens_before_the_web_process_is_started():
    (listener,) = open_listeners("127.0.0.1", 0)
    with listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=2)


def test_sockets_of_a_refused_host_are_closed(monkeypatch):
    """The second address is taken: the first one is free again after the refusal."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.1", "127.0.0.2")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: infos)
        with pytest.raises(Unavailable):
            open_listeners("both.example", port)
        monkeypatch.undo()
        assert _open("127.0.0.1", port)
