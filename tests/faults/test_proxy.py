"""The proxy passes bytes on, and each of its faults does what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Faults, Proxy
from tests.faults.site import wait_until


@pytest.fixture
def proxy(tmp_path) -> Iterator[Proxy]:
    """A proxy to a server on a unix socket that returns what it gets."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "echo"))
    listener.listen()

    def echo(connection: socket.socket) -> None:
        with connection:
            while piece := connection.recv(1 << 16):
                connection.sendall(piece)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    made = Proxy(str(tmp_path / "echo"))
    yield made
    made.stop()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def client(proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as made:
        yield made


def reply(client: socket.socket, sent: bytes, timeout_s: float = 5.0) -> bytes:
    client.settimeout(timeout_s)
    client.sendall(sent)
    found = b""
    while len(found) < len(sent):
        piece = client.recv(1 << 16)
        if not piece:
            break
        found += piece
    return found


def test_bytes_pass_in_both_directions(proxy, client):
    assert reply(client, b"x" * 1_000_000) == b"x" * 1_000_000
    assert proxy.num_connections == 1


@pytest.mark.parametrize("faults", [Faults(delay_s=0.1), Faults(bytes_per_s=100)], ids=["delay", "throttle"])
def test_pieces_come_late(proxy, client, faults):
    proxy.faults = faults
    begun = time.monotonic()
    assert reply(client, b"x" * 10) == b"x" * 10
    assert 0.2 <= time.monotonic() - begun < 2


def test_a_cut_resets_connections_and_new_ones_are_taken(proxy, client):
    assert reply(client, b"x") == b"x"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as second:
        assert reply(second, b"y") == b"y"
    wait_until(lambda: proxy.num_connections == 0, 5, "the end of the connections")


def test_a_held_connection_stays_open_and_goes_on(proxy, client):
    proxy.faults = Faults(is_held=True)
    with pytest.raises(TimeoutError):
        reply(client, b"x", timeout_s=0.2)
    proxy.faults = Faults()
    client.settimeout(5)
    assert client.recv(1) == b"x"


def test_dropped_replies_never_come(proxy, client):
    proxy.faults = Faults(drops_replies=True)
    with pytest.raises(TimeoutError):
        reply(client, b"x", timeout_s=0.2)
    proxy.faults = Faults()
    assert reply(client, b"y") == b"y"


def test_refused_connections_are_closed(proxy):
    proxy.faults = Faults(is_refused=True)
    with (
        pytest.raises((ConnectionResetError, BrokenPipeError)),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client,
    ):
        client.recv(1)


def test_what_a_client_sends_is_rewritten(proxy, client):
    proxy.faults = Faults(rewrite=lambda piece: piece.replace(b"a", b"b"))
    assert reply(client, b"banana") == b"bbnbnb"
