"""A terminal for tests: a command in a pane of tmux, keys to it, and what it shows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """One pane of a tmux server of its own."""

    def __init__(self, arguments: Sequence[str], directory: Path, **environment: str) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is missing. Try: apt-get install tmux")
        self._socket = f"blazr-{uuid.uuid4().hex[:8]}"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("BLAZR_")}
        variables |= {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **environment}
        command = shlex.join([sys.executable, "-m", "blazr_site.cli", *arguments])
        subprocess.run(
            ["tmux", "-L", self._socket, "-f", "/dev/null", "new-session", "-d", "-x", "160", "-y", "50", "-c",
             str(directory), f"{command}; echo ended with $?; sleep 600"],
            env=variables, check=True, timeout=30,
        )  # fmt: skip

    def keys(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, C-c, C-d, Escape."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a text, and Enter."""
        self._tmux("send-keys", "-l", text)
        self.keys("Enter")

    def text(self) -> str:
        """All that was shown."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def styled(self) -> str:
        """The same with escape sequences."""
        return self._tmux("capture-pane", "-p", "-e", "-S", "-")

    def wait(self, condition: str | Callable[[str], bool], timeout_s: float = 90) -> str:
        """Wait until a text is shown, or a condition on all that is shown holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            shown = self.text()
            if condition in shown if isinstance(condition, str) else condition(shown):
                return shown
            assert time.monotonic() < deadline, f"{condition} did not come:\n{shown}"
            time.sleep(0.1)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False, capture_output=True, timeout=30)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._socket, *arguments], check=True, capture_output=True, text=True, timeout=30
        )
        return done.stdout
