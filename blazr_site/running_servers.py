"""Remember which servers of this account run on this machine, so that commands find one without ``--data-dir``.

Each server writes a file with its data directory. A file counts while that directory's ``serve.lock`` is held.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blazr_site.process_environment import runtime_base
from inference.host.disk import try_lock

LOCK_FILE = "serve.lock"
MAX_URL_CHARS = 2000


def _directory() -> Path:
    return runtime_base() / f"blazr-{os.getuid()}-servers"


@contextmanager
def announced(data_dir: Path) -> Iterator[None]:
    """Let commands find the server of ``data_dir`` meanwhile; without a place for that, they need ``--data-dir``."""
    file = _directory() / f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:10]}.json"
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_ours(file.parent):
            file.write_text(json.dumps({"data_dir": str(data_dir)}))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def running_servers() -> list[Path]:
    """Return the data directories of the servers that run now, sorted."""
    directory, found = _directory(), []
    if not _is_ours(directory):
        return []
    for file in sorted(directory.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data_dir = Path(json.loads(file.read_text())["data_dir"])
            if is_running(data_dir):
                found.append(data_dir)
    return sorted(found)


def is_running(data_dir: Path) -> bool:
    """Whether a server holds the lock of a data directory."""
    return _lock_content(data_dir) is not None


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the ``blazr serve`` that runs on a data directory; None: none does, or it is starting."""
    return _lock_content(data_dir) or None


def _lock_content(data_dir: Path) -> str | None:
    """What the server that holds the lock has written to it; None: no server does."""
    try:
        with (data_dir / LOCK_FILE).open("r+") as lock:
            return None if try_lock(lock.fileno()) else lock.read(MAX_URL_CHARS).strip()
    except OSError:
        return None


def _is_ours(directory: Path) -> bool:
    """Whether nobody else can have written there: the place for sockets may be the system's /tmp."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and directory.is_dir()
