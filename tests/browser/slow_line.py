"""A way to a server on loopback that tests can slow down and cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PIECE = 1 << 16


class SlowLine:
    """Forwards connections to a port.

    Attributes:
        bytes_per_s: At most so many go to the server, over each connection; None: as many as it takes.
        num_changed: So many pieces of content still arrive with a byte changed.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        """Of ``_pairs`` and ``_is_cut``: no connection is made while they are cut."""
        self._is_cut = False
        self.bytes_per_s: float | None = None
        self.num_changed = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and take no new ones until ``mend``."""
        with self._lock:
            self._is_cut = True
            for pair in self._pairs:
                _close(*pair)
            self._pairs.clear()

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    _close(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._pairs.append((client, server))
            for source, target, is_up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, target, is_up), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                if is_up and self.num_changed and len(piece) == PIECE:
                    self.num_changed -= 1
                    piece = piece[:-1] + bytes([piece[-1] ^ 1])
                target.sendall(piece)
                if is_up and self.bytes_per_s and len(piece) > 2048:
                    time.sleep(len(piece) / self.bytes_per_s)
        _close(source, target)


def _close(*sockets: socket.socket) -> None:
    for item in sockets:
        with contextlib.suppress(OSError):
            item.shutdown(socket.SHUT_RDWR)
        item.close()
