"""End a child process on a signal, with its clean-up."""

from __future__ import annotations

import signal
import sys


def exit_on_sigterm() -> None:
    """Exit on SIGTERM with status 1, so that context managers remove what isn't complete."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # another one must not disturb the clean-up
    sys.exit(1)
