"""End a child process on a signal, with its clean-up, or with its input."""

from __future__ import annotations

import os
import signal
import sys
import threading


def exit_on_sigterm() -> None:
    """Exit on SIGTERM with status 1, so that context managers remove what isn't complete."""
    signal.signal(signal.SIGTERM, _exit)


def end_with_stdin() -> None:
    """End this process as on SIGTERM when its standard input is closed: nobody waits for its output any more."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # another one must not disturb the clean-up
    sys.exit(1)
