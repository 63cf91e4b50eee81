"""Real processes that a test kills and stops: Redis, web processes, workers and beat."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis

from blazr_site import embedded_redis
from blazr_site.listeners import BACKLOG, open_listeners
from blazr_site.process_environment import child_environment
from blazr_site.settings.database import database_config
from blazr_site.settings.redis import redis_urls
from inference.transport import keys as redis_keys
from inference.transport.held_messages import held_messages, release_worker
from inference.values.states import WorkerState
from tests.faults.clock import build_library, clock_variables, has_compiler, set_clock
from tests.faults.proxy import Proxy
from tests.migrated import copy_template

REQUEST_TIMEOUT_S = 120
"""Longer than any request of the tests takes, so that requests without an owner end while a test waits."""
ROOT = Path(__file__).resolve().parents[2]
_CELERY = (sys.executable, "-m", "celery", "-q", "-A", "blazr_site.celery")

_TABLES = (
    "storedstate",
    "batchresult",
    "batchline",
    "batch",
    "jobchunk",
    "storedresponse",
    "generationjob",
    "usagerecord",
    "usageday",
    "storedfile",
)
"""Tables of what requests leave behind, in an order in which their rows can be deleted."""

_SET_UP = """
import django
from blazr_site.settings.storage import prepare_data_dir
prepare_data_dir()  # with the key that signs the session
django.setup()
from django.core.management import call_command
from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry.services import checkpoint_register
call_command("migrate", interactive=False, verbosity=0)
checkpoint = checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="demo")
from django.contrib.auth import get_user_model
from django.test import Client
client = Client()
client.force_login(get_user_model().objects.create_superuser("root"))
print(checkpoint.pk, client.cookies["sessionid"].value)
"""


def wait_until(check: Callable[[], Any], timeout_s: float, what: str) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.02)
    return found


class Site:
    """Redis, web processes, workers and beat; like ``blazr serve``, it starts again what ends by itself.

    Args:
        directory: Data directory, with the logs.
        database_url: A PostgreSQL; None: SQLite in the directory.
        is_proxied: Whether the processes reach Redis through ``proxy``.

    Attributes:
        urls: Addresses of the web processes; connections wait while a process is replaced.
        processes: All processes, by name; a worker's name is its id.
        proxy: What the processes reach Redis through; None: they reach it directly.
        deaths: Exit codes of workers that ended by themselves, in order, with their ids.
    """

    def __init__(self, directory: Path, *, database_url: str | None = None, is_proxied: bool = False) -> None:
        self.directory = directory
        self._clock = build_library(directory) if is_proxied and has_compiler() else None
        self._database_url = database_url
        self._runtime = tempfile.TemporaryDirectory(prefix="blazr-faults-")  # a path of a socket is short
        self._socket = Path(self._runtime.name) / "redis.sock"
        urls = redis_urls(f"unix://{self._socket}?db=0")
        self._redis_url = urls.client
        self.client = redis.Redis.from_url(urls.client, protocol=2, socket_timeout=2)
        self.proxy = Proxy(str(self._socket)) if is_proxied else None
        self.urls: list[str] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths: list[tuple[str, int]] = []
        self._worker_ids: list[str] = []
        self._starts: dict[str, Callable[[], None]] = {}
        self._faults: dict[str, str] = {}
        self._listeners: list[socket.socket] = []
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._stopping = False
        self._held: set[str] = set()
        own = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "DJANGO_", "REDIS_"))}
        self._environment = own | {
            "OMP_NUM_THREADS": "1",
            "REDIS_URL": urls.celery if self.proxy is None else f"redis://127.0.0.1:{self.proxy.port}/0",
            **({} if database_url is None else {"DATABASE_URL": database_url}),
            "BLAZR_DATA_DIR": str(directory),
            "BLAZR_REQUEST_TIMEOUT_S": str(REQUEST_TIMEOUT_S),
            "DJANGO_SETTINGS_MODULE": "blazr_site.settings",
            "PYTHONPATH": str(ROOT),
        }
        if database_url is None:
            copy_template(directory)
        (directory / "redis").mkdir()
        self._add(
            "redis", embedded_redis.server_command(socket=self._socket, directory=directory / "redis", durable=True)
        )
        self.await_redis()
        done = subprocess.run(
            [sys.executable, "-c", _SET_UP],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        self.checkpoint_id, self._session = done.stdout.split()[-2:]

    def manage(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py with further variables."""
        command = [sys.executable, "manage.py", *arguments]
        environment = {**self._environment, **variables}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    @property
    def workers(self) -> dict[str, subprocess.Popen[bytes]]:
        """The workers, by id."""
        return {worker_id: self.processes[worker_id] for worker_id in self._worker_ids}

    def start(self, *, num_webs: int, num_workers: int) -> None:
        """Start all processes, and wait until they serve."""
        for number in range(num_workers):
            self._add_worker(f"faults-{number}")
        for number in range(num_webs):
            (listener,) = open_listeners("127.0.0.1", 0)
            listener.listen(BACKLOG)
            self._listeners.append(listener)
            self.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            command = [sys.executable, "-m", "blazr_site.web", str(listener.fileno())]
            self._add(f"web-{number}", command, descriptors=[listener.fileno()])
        self._add("beat", [*_CELERY, "beat", "-S", "celery.beat.Scheduler", "--pidfile="])
        for url in self.urls:
            wait_until(lambda url=url: answers(url), 120, f"the start of {url}")
        wait_until(lambda: len(self.ready_workers()) == num_workers, 120, "the load of the model by all workers")
        self._supervisor.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all processes, for another one of the same site."""
        return self._environment

    def arm(self, name: str, faults: str) -> None:
        """Give a process fault points (``inference.host.fault_points``) at its next start; later starts have none."""
        self._faults[name] = faults

    def _add_worker(self, worker_id: str) -> None:
        variables = child_environment(
            worker_id=worker_id,
            preload=(self.checkpoint_id,),
            CELERY_CUSTOM_WORKER_POOL="tests.faults.pool:FaultyPool",
        )
        command = [
            *(*_CELERY, "worker", "-P", "custom", "-n", f"{worker_id}@%h"),
            *("-Q", "default", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
        self._worker_ids.append(worker_id)
        if self._clock is not None:
            variables |= clock_variables(self._clock, self.directory / f"{worker_id}.clock")
        self._add(worker_id, command, {key: value for key, value in variables.items() if os.environ.get(key) != value})

    def _add(
        self,
        name: str,
        command: list[str],
        variables: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start a process; ``_supervise`` starts it again."""

        def start() -> None:
            with (self.directory / f"{name}.log").open("ab") as log:
                faults = {"_BLAZR_FAULTS": self._faults.pop(name, "")}
                self.processes[name] = subprocess.Popen(
                    command, cwd=ROOT, env={**self._environment, **(variables or {}), **faults}, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True, pass_fds=descriptors,
                )  # fmt: skip

        self._starts[name] = start
        start()

    def _supervise(self) -> None:
        while not self._stopping:
            for name, process in list(self.processes.items()):
                if process.poll() is None or self._stopping or name in self._held:
                    continue
                if name in self._worker_ids:
                    self.deaths.append((name, process.returncode))
                    with contextlib.suppress(redis.RedisError):  # its messages come back when its lease has expired
                        release_worker(self.client, name)
                self._starts[name]()
            time.sleep(0.05)

    def browser(self) -> httpx.Client:
        """Return a client with an administrator's session."""
        token = "c" * 32
        cookies = {"sessionid": self._session, "csrftoken": token}
        return httpx.Client(base_url=self.urls[0], cookies=cookies, headers={"X-CSRFToken": token}, timeout=20)

    def set_clock(self, worker_id: str, offset_s: int) -> None:
        """Let the clock of a worker jump, where the site has clocks."""
        set_clock(self.directory / f"{worker_id}.clock", offset_s)

    def ready_workers(self) -> list[WorkerState]:
        """The workers that hold the model, none while Redis is away.

        What a process has said that has ended since stays in Redis, and is old.
        """
        try:
            payloads = [self.client.get(redis_keys.worker(worker_id)) for worker_id in self._worker_ids]
        except redis.RedisError:
            return []
        states = [WorkerState.from_json(payload) for payload in payloads if payload]
        running = {process.pid for process in self.workers.values() if process.poll() is None}
        return [
            state for state in states if state.pid in running and any(model.status == "ready" for model in state.models)
        ]

    def held_by(self, worker_id: str) -> set[str]:
        """The requests whose messages a worker has taken."""
        return held_messages(self.client, worker_id)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and its children; one that has just ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    @contextlib.contextmanager
    def away(self, name: str) -> Iterator[None]:
        """Kill a process, and start it again at the end."""
        self._held.add(name)
        self.signal(name, signal.SIGKILL)
        self.processes[name].wait(10)
        try:
            yield
        finally:
            self._starts[name]()
            self._held.discard(name)

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop a process with SIGSTOP until the end."""
        self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(name, signal.SIGCONT)

    @contextlib.contextmanager
    def file_limit(self, name: str, *, size_bytes: int) -> Iterator[None]:
        """Let no file of a process grow beyond a size, which fails as a full disk does."""
        pid = self.processes[name].pid
        old = resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, old)

    def redis_wiped(self) -> None:
        """Kill Redis, and start it again without the requests, events and leases that it had."""
        with self.away("redis"):
            shutil.rmtree(self.directory / "redis")
            (self.directory / "redis").mkdir()
        self.await_redis()

    def await_redis(self) -> None:
        """Wait until Redis replies."""
        embedded_redis.wait_until_ready(self._redis_url, timeout_s=30)

    def rows(self, query: str, *parameters: object) -> list[Any]:
        """Return the rows of a query of the database; a UUID is 32 hexadecimal digits."""
        if self._database_url is None:
            with sqlite3.connect(self.directory / "db.sqlite3", timeout=20) as database:
                return database.execute(query, parameters).fetchall()
        with self._connect_when_free() as connection:
            cursor = connection.execute(query.replace("?", "%s"), parameters)
            found = cursor.fetchall() if cursor.description else []
        return [tuple(item.hex if isinstance(item, uuid.UUID) else item for item in row) for row in found]

    @contextlib.contextmanager
    def locked(self, *tables: str) -> Iterator[None]:
        """Lock tables of PostgreSQL against every use."""
        with self._connect() as connection:
            connection.execute(f"lock table {', '.join(tables)} in access exclusive mode")
            yield

    def rows_in_reverse(self) -> None:
        """Lock all open jobs in one transaction, the last one first; a worker may be the one that deadlocks."""
        with contextlib.suppress(psycopg.errors.DeadlockDetected), self._connect() as connection:
            connection.execute("set deadlock_timeout = '10s'")  # so that the other side finds the deadlock
            keys = connection.execute(
                "select id from inference_generationjob where finished_at is null order by id desc"
            )
            for (key,) in keys.fetchall():
                connection.execute("select 1 from inference_generationjob where id = %s for update", (key,))

    @contextlib.contextmanager
    def few_connections(self, number: int) -> Iterator[None]:
        """Hold all connections of PostgreSQL but some."""
        with contextlib.ExitStack() as stack:
            held: list[psycopg.Connection[Any]] = []
            with contextlib.suppress(psycopg.OperationalError):  # too many clients already
                while True:
                    held.append(stack.enter_context(self._connect()))
            for connection in held[:number]:
                connection.close()
            yield

    def _connect(self) -> psycopg.Connection[Any]:
        assert self._database_url is not None
        config = database_config(self._database_url)
        return psycopg.connect(host=config["HOST"], user=config["USER"], dbname=config["NAME"])

    def _connect_when_free(self) -> psycopg.Connection[Any]:
        """Wait until the processes leave one of the few connections, as a test only looks on."""

        def connection() -> psycopg.Connection[Any] | None:
            with contextlib.suppress(psycopg.OperationalError):  # too many clients already
                return self._connect()
            return None

        found: psycopg.Connection[Any] = wait_until(connection, 10, "a free connection to PostgreSQL")
        return found

    def clear(self) -> None:
        """Delete what earlier tests have stored, so that a ledger counts one test's rows."""
        path = self.directory / "db.sqlite3"
        with sqlite3.connect(path, timeout=20) if self._database_url is None else self._connect_when_free() as database:
            for table in _TABLES:  # in one transaction
                database.execute(f"delete from inference_{table}")

    def log_sizes(self) -> dict[str, int]:
        """Return the length of each process's log, for ``log_lines``."""
        return {path.stem: path.stat().st_size for path in self.directory.glob("*.log")}

    def log_lines(self, since: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the lines that each process has logged since."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.directory.glob("*.log")):
            with path.open("rb") as log:
                log.seek(since.get(path.stem, 0))
                found[path.stem] = log.read().decode(errors="replace").splitlines()
        return found

    def stop(self) -> None:
        """Kill all processes."""
        self._stopping = True
        if self._supervisor.is_alive():
            self._supervisor.join(10)
        for name in self.processes:
            self.signal(name, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(10)
        for listener in self._listeners:
            listener.close()
        self.client.close()
        if self.proxy is not None:
            self.proxy.stop()
        self._runtime.cleanup()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
