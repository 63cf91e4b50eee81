"""Supervise the processes of one machine: Redis, workers, beat and web.

Start: Redis first, until it replies to PING; then workers, beat and web together, until each is ready. A process that
ends is started again, after a pause that doubles while the process ends soon after its start. The listening sockets
belong to the supervisor, so connections wait while the web process is replaced. Stop: web first (finishes its streams
and accepts nothing new), then the workers (finish running requests and requeue the others), beat, and Redis last. A
second signal kills all processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from blazr_site import embedded_redis
from blazr_site.children import Child, Program
from blazr_site.listeners import BACKLOG
from blazr_site.process_environment import child_environment
from inference.errors import BlazrError, Unavailable
from inference.transport import keys as redis_keys
from inference.transport.clients import connect
from inference.transport.held_messages import release_worker
from inference.transport.redis_memory import memory_warnings
from inference.values.states import ModelState, WorkerState, merge_models

READY_TIMEOUT_S = 120.0
MAX_STARTS_UNREADY = 3
REDIS_GRACE_S = 15.0
POOL = "inference.worker.pool:EnginePool"
_LOOPBACK_OF_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # nosec B104


@dataclass(frozen=True, slots=True)
class Site:
    """Describes the site that the supervisor runs.

    Attributes:
        data_dir, log_dir, runtime_dir: Directories; the last one holds the socket.
        redis_url: Address in redis-py's notation.
        redis_socket: Socket of the embedded server; None: the server at ``redis_url`` is external.
        listeners: Bound sockets of the web server; the supervisor closes them.
        devices: Devices, with one worker each.
        preload: Ids and names of the checkpoints that every worker loads and keeps.
        drain_grace_s: Seconds for running requests to finish at shutdown.
    """

    host: str
    port: int
    data_dir: Path
    log_dir: Path
    runtime_dir: Path
    redis_url: str
    redis_socket: Path | None
    devices: tuple[str, ...]
    preload: Mapping[str, str]
    drain_grace_s: float
    listeners: tuple[socket.socket, ...] = ()

    @property
    def options(self) -> dict[str, str]:
        """Settings that were chosen at the start, the same in all children."""
        return {"BLAZR_DATA_DIR": str(self.data_dir), "BLAZR_PORT": str(self.port)}

    @property
    def url(self) -> str:
        """Address for people on this machine."""
        host = self.local_host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def local_host(self) -> str:
        """Address for connections from this machine."""
        host = self.host.strip("[]")
        return _LOOPBACK_OF_ALL.get(host, host)


class Supervisor:
    """Runs a site until a signal or a fatal error."""

    def __init__(self, site: Site, console: Console) -> None:
        self._site = site
        self._console = console
        self._redis: Child | None = None
        self._workers: dict[str, Child] = {}
        self._beat: Child | None = None
        self._web: Child | None = None
        self._stop = asyncio.Event()
        self._signals = 0
        self._failure: str | None = None
        self._client: aioredis.Redis = aioredis.Redis.from_url(site.redis_url, protocol=2, socket_timeout=3)

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Start everything, call ``on_ready``, and keep it running.

        Returns:
            0 after a signal; 1 if the site could not start or continue.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        started = time.monotonic()
        try:
            await self._until_stopped(self._start())
            if not self._stop.is_set():
                self._show(f"[dim]ready after {time.monotonic() - started:.1f} s[/dim]")
                on_ready()
                await self._stop.wait()
        except BlazrError as error:
            self._failure = error.message
        finally:
            await self._shut_down()
        if self._failure is not None:
            self._show(Text.assemble(("error:", "red"), f" {self._failure}"))
            return 1
        return 0

    # --- start

    async def _until_stopped(self, work: object) -> None:
        """Run ``work`` until it ends or a signal arrives."""
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return
        task.result()

    async def _start(self) -> None:
        site = self._site
        if site.redis_socket is not None:
            embedded_redis.make_runtime_dir(site.runtime_dir)
            directory = site.data_dir / "redis"
            directory.mkdir(mode=0o700, exist_ok=True)
            command = embedded_redis.server_command(socket=site.redis_socket, directory=directory, durable=True)
            self._redis = self._child(Program("redis", command, child_environment(), REDIS_GRACE_S, is_quiet=True))
            self._redis.start()
        await self._step("redis", self._redis_ready(), "embedded" if site.redis_socket else "yours")
        since = time.time()
        self._start_workers()
        environment = child_environment(options=site.options)
        self._beat = self._child(
            Program("beat", self._celery("beat", "-S", "celery.beat.Scheduler", "--pidfile="), environment, 5)
        )
        self._beat.start()
        for listener in site.listeners:
            listener.listen(BACKLOG)
        descriptors = [listener.fileno() for listener in site.listeners]
        command = [sys.executable, "-m", "blazr_site.web", *map(str, descriptors)]
        self._web = self._child(Program("web", command, environment, site.drain_grace_s + 5, descriptors))
        self._web.start()
        await self._step("web", self._web_ready(), site.url)
        for number, worker_id in enumerate(self._workers):
            device = site.devices[number]
            await self._step("worker", self._worker_ready(worker_id, since), f"{worker_id} on {device}")
        self._show(Text.assemble(("  ✓ ", "green"), f"{'beat':8}"))
        if site.preload:
            await self._models_ready()

    def _start_workers(self) -> None:
        site = self._site
        for number, device in enumerate(site.devices):
            worker_id = f"{os.uname().nodename}-{site.port}-{number}"
            environment = child_environment(
                options={**site.options, "BLAZR_DEVICE": device},
                worker_id=worker_id,
                preload=tuple(site.preload),
                CELERY_CUSTOM_WORKER_POOL=POOL,
            )
            command = self._celery(
                "worker", "-P", "custom", "-n", f"{worker_id}@%h", "-Q", redis_keys.DEFAULT_QUEUE,
                "--without-gossip", "--without-mingle", "--without-heartbeat",
            )  # fmt: skip
            name = "worker" if len(site.devices) == 1 else f"worker-{number}"
            child = self._child(
                Program(name, command, environment, site.drain_grace_s + 15), on_exit=self._release(worker_id)
            )
            self._workers[worker_id] = child
            child.start()

    def _celery(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-q", "-A", "blazr_site.celery", *arguments]

    def _child(self, program: Program, on_exit: Callable[[int], None] = lambda code: None) -> Child:
        return Child(program, self._site.log_dir, report=self._report, on_exit=on_exit)

    # --- readiness

    async def _step(self, name: str, ready: object, detail: str) -> None:
        started = time.monotonic()
        with self._console.status(f"{name} …"):
            await ready  # type: ignore[misc]
        took = time.monotonic() - started
        self._show(Text.assemble(("  ✓ ", "green"), f"{name:8}", (detail, "default"), (f"  {took:.1f} s", "dim")))

    async def _poll(self, name: str, child: Child | None, check: Callable[[], object], interval_s: float) -> None:
        """Wait until ``check`` returns a true value.

        Raises:
            Unavailable: The process ends repeatedly, or the time limit has passed.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                if await check():  # type: ignore[misc]
                    return
            if child is not None and child.num_starts > MAX_STARTS_UNREADY:
                raise Unavailable(f"{name} does not start; its log is {self._log_of(child)}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready within {READY_TIMEOUT_S:g} s.")
            await asyncio.sleep(interval_s)

    def _log_of(self, child: Child) -> Path:
        return self._site.log_dir / f"{child.program.name}.log"

    async def _redis_ready(self) -> None:
        async def check() -> bool:
            return bool(await self._client.ping())

        await self._poll("redis", self._redis, check, 0.02)
        version = str((await self._client.info("server")).get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < (6, 2):
            raise Unavailable(f"Redis at REDIS_URL has version {version}, 6.2 is the oldest that works.")
        for warning in memory_warnings(await self._client.info("memory")):
            self._show(Text.assemble(("  ! ", "yellow"), warning), soft_wrap=True)

    async def _web_ready(self) -> None:
        async def check() -> bool:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(self._site.local_host, self._site.port)
                try:
                    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    # Any status suffices, because ALLOWED_HOSTS may refuse this host name.
                    return (await reader.readline()).startswith(b"HTTP/1.1 ")
                finally:
                    writer.close()

        await self._poll("web", self._web, check, 0.1)

    async def _worker_ready(self, worker_id: str, since: float) -> None:
        async def check() -> bool:
            state = await self._worker_state(worker_id)
            return state is not None and state.started_at >= since - 1

        await self._poll("worker", self._workers[worker_id], check, 0.1)

    async def _worker_state(self, worker_id: str) -> WorkerState | None:
        payload = await self._client.get(redis_keys.worker(worker_id))
        return WorkerState.from_json(payload) if payload else None

    async def _models_ready(self) -> None:
        """Show the loading of the command line's models; a failure is reported, and the site continues."""
        columns = (
            TextColumn("  [cyan]↻[/cyan] {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[stage]}[/dim]"),
        )  # fmt: skip
        waiting = dict(self._site.preload)
        with Progress(*columns, console=self._console, transient=True) as bars:
            tasks = {key: bars.add_task(f"load {name}", total=1.0, stage="") for key, name in waiting.items()}
            while waiting:
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    workers = [await self._worker_state(worker_id) for worker_id in self._workers]
                    models = merge_models([worker for worker in workers if worker is not None])
                    failures: Any = await self._client.hgetall(redis_keys.FAILURES)
                    for key in list(waiting):
                        state = models.get(key, ModelState(key))
                        bars.update(tasks[key], completed=state.progress, stage=state.stage[:60])
                        if state.status == "ready":
                            self._show(Text.assemble(("  ✓ ", "green"), f"{'model':8}{waiting.pop(key)}"))
                        elif key.encode() in failures and state.status == "unloaded":
                            message = redis_keys.failure_message(failures[key.encode()])
                            name = waiting.pop(key)
                            self._show(Text.assemble(("  ✗ ", "red"), f"{'model':8}{name}: {message}"))
                await asyncio.sleep(0.1)

    # --- life

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._show("[dim]stopping; once more to kill everything[/dim]")
            self._stop.set()
            return
        for child in self._children():
            child.kill()

    def _release(self, worker_id: str) -> Callable[[int], None]:
        """Return a callback that requeues a dead worker's requests at once, before other workers miss its heartbeat."""

        def release(code: int) -> None:
            try:
                with connect(self._site.redis_url) as client:
                    num = release_worker(client, worker_id)
            except (RedisError, OSError) as error:
                self._report("serve", f"the requests of {worker_id} could not be handed back ({error})")
            else:
                self._report("serve", f"{worker_id} ended, {num} of its requests go back to their queues")

        return release

    def _children(self) -> list[Child]:
        found = [self._web, *self._workers.values(), self._beat, self._redis]
        return [child for child in found if child is not None]

    async def _shut_down(self) -> None:
        for listener in self._site.listeners:
            listener.close()  # with the web process's end of them, new connections are refused
        for children in ([self._web], list(self._workers.values()), [self._beat], [self._redis]):
            present = [child for child in children if child is not None]
            await asyncio.gather(*(child.stop() for child in present))
            if self._signals < 2 and self._stop.is_set():
                for child in present:
                    self._show(f"[dim]  {child.program.name} stopped[/dim]")
        await self._client.aclose()
        if self._site.redis_socket is not None:
            with contextlib.suppress(OSError):
                self._site.redis_socket.unlink(missing_ok=True)
                self._site.runtime_dir.rmdir()

    def _report(self, name: str, line: str) -> None:
        self._show(Text.assemble((f"{name:>8} │ ", "dim"), line), soft_wrap=True)

    def _show(self, text: str | Text, *, soft_wrap: bool = False) -> None:
        """Print; the site continues where that fails, such as into a file on a full disk."""
        with contextlib.suppress(OSError):
            self._console.print(text, soft_wrap=soft_wrap)


def run_site(site: Site, console: Console, on_ready: Callable[[], None]) -> int:
    """Run the supervisor in a new event loop."""
    return asyncio.run(_run(site, console, on_ready))


async def _run(site: Site, console: Console, on_ready: Callable[[], None]) -> int:
    return await Supervisor(site, console).run(on_ready)


def device_list(text: str) -> tuple[str, ...]:
    """Split ``cuda:0,cuda:1`` into a tuple of devices, with one worker each."""
    devices: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(devices) or ("auto",)
