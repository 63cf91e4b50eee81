"""LoadSite: the processes of ``Site`` with limits of its own, and what they hold: memory, descriptors, tasks, slots."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.child import status_bytes
from inference.transport import keys as redis_keys
from inference.values.states import ResidentModel
from tests.faults.load import LOG
from tests.faults.site import ROOT, Site, wait_until

WEB = "blazr_site.web"
OWN_WEB = "tests.faults.load.web"
RELEASED_WITHIN_S = 20.0
MORE_DESCRIPTORS = 6
"""Connections to the database that a process may keep after a load and didn't have before it."""
MORE_TASKS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_MAKE_ADMIN = """
import django; django.setup()
from inference.access.api_keys import api_key_create
print(api_key_create(name="admin", scopes=["admin"])[1])
"""


@dataclass(frozen=True)
class Abort:
    """A request that ended early in an engine.

    Attributes:
        stage: queued, prefill or decode.
        num_generated: Tokens that the engine had generated.
        at: ``time.monotonic()`` when its slot and blocks were free.
    """

    stage: str
    num_generated: int
    at: float


@dataclass(frozen=True)
class Holdings:
    """What a process holds.

    Attributes:
        memory_bytes: Anonymous resident memory.
        num_connections: Connections of clients, and listening sockets.
        num_descriptors: Other open descriptors, without Unix sockets.
        tasks: Names of asyncio tasks; empty for a worker.
    """

    memory_bytes: int
    num_connections: int
    num_descriptors: int
    tasks: tuple[str, ...] = ()


def descriptors(pid: int) -> tuple[int, int]:
    """Numbers of a process's open sockets and other descriptors, without Unix sockets.

    Redis is reached over Unix sockets; the pool of connections to it grows to 32.
    """
    unix = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    sockets = [target for target in found if target.startswith("socket:")]
    return sum(target not in unix for target in sockets), len(found) - len(sockets)


def _processor_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _machine_s() -> float:
    user, nice, system, _idle, _waiting, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + sum(others)) / _TICKS_PER_S


class LoadSite(Site):
    """Processes whose web processes can count their tasks, and whose engines log requests that end early.

    Args:
        directory: For all data.
        variables: Settings of all processes.
    """

    def __init__(self, directory: Path, **variables: object) -> None:
        self._variables = {name: str(value) for name, value in variables.items()}
        self._variables["CELERY_CUSTOM_WORKER_POOL"] = "tests.faults.load.pool:LoggingPool"
        super().__init__(directory)

    def _add(
        self,
        name: str,
        command: list[str],
        variables: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        command = [OWN_WEB if part == WEB else part for part in command]
        super()._add(name, command, {**(variables or {}), **self._variables}, descriptors)

    def key(self, **limits: int | None) -> str:
        """Create an API key with limits, and return it."""
        body = {"name": "load", **limits}
        response = httpx.post(f"{self.urls[0]}/v1/keys", json=body, headers=self._admin, timeout=20)
        assert response.status_code == 201, response.text
        return str(response.json()["value"])

    def admin_key(self) -> str:
        """Create a key with the scope admin, and return it."""
        return self.python(_MAKE_ADMIN)

    @functools.cached_property
    def _admin(self) -> dict[str, str]:
        """Headers of a caller who may create keys."""
        return {"Authorization": f"Bearer {self.admin_key()}"}

    def python(self, source: str, *arguments: object) -> str:
        """Run a program with the site's settings; return the last line that it writes."""
        done = subprocess.run(
            [sys.executable, "-c", source, *map(str, arguments)], cwd=ROOT, env=self._environment | self._variables,
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    def tenant(self, key: str) -> str:
        """Return the tenant of a key."""
        ((number,),) = self.rows("select id from inference_apikey where prefix = ?", key.split("_")[1])
        return f"key:{number}"

    # --- what processes hold -----------------------------------------------------------------------

    @property
    def webs(self) -> list[str]:
        """Names of the web processes."""
        return [name for name in self.processes if name.startswith("web-")]

    def holdings(self) -> dict[str, Holdings]:
        """What each web process and worker holds, by name."""
        return {name: self.holdings_of(name) for name in [*self.webs, *self.workers]}

    def holdings_of(self, name: str) -> Holdings:
        """What a web process or worker holds."""
        pid = self.processes[name].pid
        tasks = self._tasks(pid) if name in self.webs else ()
        return Holdings(status_bytes("RssAnon", pid), *descriptors(pid), tasks)

    def _tasks(self, pid: int) -> tuple[str, ...]:
        path = self.directory / f"tasks-{pid}.json"
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        wait_until(path.exists, 10, f"the list of tasks of {pid}")
        return tuple(json.loads(path.read_text()))

    def web_memory(self) -> int:
        """Anonymous resident memory of the largest web process, in bytes."""
        return max(status_bytes("RssAnon", self.processes[name].pid) for name in self.webs)

    def processor_s(self) -> dict[str, float]:
        """Seconds of a processor that each process has used, by name; ``client``: this one, ``machine``: all."""
        found = {name: _processor_s(Path(f"/proc/{process.pid}/stat")) for name, process in self.processes.items()}
        return {**found, "client": _processor_s(Path("/proc/self/stat")), "machine": _machine_s()}

    def models(self) -> list[ResidentModel]:
        """The model as each worker reports it."""
        return [model for worker in self.ready_workers() for model in worker.models]

    def num_open(self) -> int:
        """Requests that are queued or running."""
        return int(self.client.zcard(redis_keys.OPEN_REQUESTS))

    def requests(self) -> tuple[set[tuple[int, ...]], dict[tuple[int, ...], Abort]]:
        """The requests that engines began, and those that ended early, by the first tokens of their prompts."""
        path = self.directory / LOG
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        begun = {tuple(mark) for mark, stage, *_ in lines if stage == "begun"}
        return begun, {tuple(mark): Abort(*fields) for mark, *fields in lines if fields[0] != "begun"}

    def left_behind(self, before: Mapping[str, Holdings]) -> list[str]:
        """Wait until everything of the requests is released; return what isn't, as sentences.

        Args:
            before: What the processes held before the requests.
        """
        given_up_at = time.monotonic() + RELEASED_WITHIN_S
        while (left := self._left(before)) and time.monotonic() < given_up_at:
            time.sleep(0.2)
        return left

    def _left(self, before: Mapping[str, Holdings]) -> list[str]:
        client = self.client
        sizes = {
            "open requests": self.num_open(),
            "messages": client.hlen(redis_keys.MESSAGES),
            "origins of messages": client.hlen(redis_keys.OPEN_ORIGINS),
            "totals of open requests": sum(
                not name.startswith(b"ends:") for name in client.hkeys(redis_keys.OPEN_TOTALS)
            ),
            "queues": client.exists(*redis_keys.model_queues(self.checkpoint_id)),
            "leases of workers": sum(len(self.held_by(worker_id)) for worker_id in self.workers),
            "open requests of keys": sum(client.zcard(key) for key in client.scan_iter(redis_keys.limit_open("*"))),
        }
        for model in self.models():
            sizes["running requests"] = model.num_running + model.num_waiting + model.num_unprepared
            sizes["slots"] = model.stats["num_state_slots_used"]
            sizes["blocks"] = model.stats["num_blocks_used"]
        left = [f"{number} {what} are left" for what, number in sizes.items() if number]
        if left:
            return left
        for name, now in self.holdings().items():
            old = before[name]
            if now.num_connections > old.num_connections:
                left.append(f"{name} has {now.num_connections} connections, it had {old.num_connections}")
            if now.num_descriptors > old.num_descriptors + MORE_DESCRIPTORS:
                left.append(f"{name} has {now.num_descriptors} descriptors, it had {old.num_descriptors}")
            if len(now.tasks) > len(old.tasks) + MORE_TASKS:
                left.append(f"{name} has {len(now.tasks)} tasks, it had {len(old.tasks)}: {now.tasks}")
        return left
