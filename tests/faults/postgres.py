"""A throw-away PostgreSQL server on a unix socket, which a test stops and starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path


def find_binaries() -> Path | None:
    """Return the directory of initdb and postgres; None: not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def reason_without() -> str:
    """Return why no server can be started here; empty: one can."""
    if find_binaries() is None:
        return "the PostgreSQL server programs (initdb, postgres) are not installed"
    if os.getuid() == 0 and (
        shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode
    ):
        return "PostgreSQL doesn't run as root, and there is no user postgres"
    return ""


class PostgresServer:
    """A server with one database.

    Args:
        root: Directory of the cluster and of the socket; its path is short.
        options: Settings, such as ``max_connections=20``.
    """

    def __init__(self, root: Path, *, options: tuple[str, ...] = ()) -> None:
        binaries = find_binaries()
        assert binaries is not None, reason_without()
        self._root, self._binaries = root, binaries
        self._as_user: list[str] = []
        if os.getuid() == 0:  # initdb refuses root
            self._as_user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(root, "postgres")
        self._options = [part for option in ("listen_addresses=", *options) for part in ("-c", option)]
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", root / "cluster", "-U", "blazr", "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()
        self._run("createdb", "-h", root, "-U", "blazr", "blazr")
        self.url = f"postgres://blazr@{str(root).replace('/', '%2F')}/blazr"

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as_user, str(self._binaries / program), *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=self._root)

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        command = [*self._as_user, str(self._binaries / "postgres"), "-D", str(self._root / "cluster")]
        self._process = subprocess.Popen(
            [*command, "-k", str(self._root), "-F", *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._root,
            start_new_session=True,
        )
        given_up_at = time.monotonic() + 20
        ready = [str(self._binaries / "pg_isready"), "-h", str(self._root)]
        while subprocess.run(ready, capture_output=True).returncode:
            assert self._process.poll() is None, "PostgreSQL stopped at its start"
            assert time.monotonic() < given_up_at, "PostgreSQL did not start within 20 s"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server at once, without waiting for transactions; the next start recovers from the log."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGQUIT)
        self._process.wait(20)

    def freeze(self) -> None:
        """Stop the server's first process with SIGSTOP: connections stay, and nobody answers new ones.

        ``runuser`` stops itself then, and goes on with it; a signal to both would stop it twice.
        """
        first = int((self._root / "cluster" / "postmaster.pid").read_text().split()[0])
        os.kill(first, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)
