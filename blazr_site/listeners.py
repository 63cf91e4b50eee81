"""Open the listening sockets of the web server."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from inference.errors import Unavailable

BACKLOG = 2048
"""Connections that wait until the web process accepts them, also while it is replaced."""


def open_listeners(host: str, port: int) -> tuple[socket.socket, ...]:
    """Bind a socket to each address of a host; none of them listens yet.

    Args:
        host: An address or a name.
        port: The port; 0: one that is free, the same for all addresses.

    Raises:
        Unavailable: The host isn't local, or another process listens on the port.
    """
    with contextlib.ExitStack() as on_error:
        opened: list[socket.socket] = []
        try:
            infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(infos):
                found = _bind(family, (address[0], port, *address[2:]))
                if found is not None:
                    opened.append(on_error.enter_context(found))
                    port = found.getsockname()[1]
            if not opened:
                raise OSError(errno.EADDRNOTAVAIL, "none of its addresses belongs to this machine")
        except (OSError, ValueError) as error:  # ValueError: no name of a host, such as one with a NUL
            reason = error.strerror if isinstance(error, OSError) else error
            raise Unavailable(
                f"{host}:{port} can't be listened on ({reason}); choose another --port or --host."
            ) from error
        on_error.pop_all()
    return tuple(opened)


def _bind(family: int, address: Any) -> socket.socket | None:
    """Return a bound socket; None: this machine doesn't have the address, such as ::1 where IPv6 is off."""
    try:
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return found
