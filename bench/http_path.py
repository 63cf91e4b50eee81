"""python -m bench.http_path: processor time of a request and of a token outside the network, by process.

One server (``blazr serve`` with a Redis of its own), one client process. Two measurements:

- processor time of web, worker, Redis and client per request (one token each) and per further token, read from
  the processes' own clocks, so that it doesn't matter which of them waits for which;
- with ``--ratio``: tokens/s of all clients together, and the time to the first token, against an engine in a process
  of its own, without any platform around it; both take turns.

The default model is so small that its network hardly counts; ``--shape llama-135m --ratio`` is for the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.child import random_prompts
from bench.figures import Interval
from bench.http_clients import DIALECTS, exchange
from bench.peers.servers import free_port
from bench.weights import SHAPES, LlamaShape, make_llama
from blazr_site.embedded_redis import server_command, wait_until_ready

START_TIMEOUT_S = 90.0
_KINDS = (("blazr_site.web", "web"), ("celery\0-q\0-A\0blazr_site.celery\0worker", "worker"), ("-server", "redis"))


@dataclass(frozen=True, slots=True)
class Site:
    """A running server."""

    port: int
    pids: dict[str, int]
    data: Path
    supervisor: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seconds(self) -> dict[str, float]:
        """Processor time that each process has had, children that ended not included; the client is this process."""
        used = {name: time.clock_gettime(_clock_of(pid)) for name, pid in self.pids.items()}
        return used | {"client": time.process_time()}


def _clock_of(pid: int) -> int:
    """The processor-time clock of another process: what glibc's ``clock_getcpuclockid`` computes (CPUCLOCK_SCHED)."""
    return (~pid << 3) | 2


@contextmanager
def serve(directory: Path, *, dtype: str, quant: str | None = None) -> Iterator[Site]:
    """Redis and ``blazr serve`` with the model of ``directory``."""
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blazr-path-")))
        log = stack.enter_context((data / "serve.log").open("w"))
        store = data / "redis"
        store.mkdir()
        redis_socket = data / "redis.sock"
        store_process = subprocess.Popen(server_command(socket=redis_socket, directory=store, durable=True), stdout=log)
        stack.callback(_end, store_process)
        url = f"unix://{redis_socket}"
        wait_until_ready(url, timeout_s=15)
        port = free_port()
        command = [str(Path(sys.executable).with_name("blazr")), "serve", "--model", str(directory)]
        command += ["--port", str(port), "--data-dir", str(data / "site"), "--dtype", dtype]
        command += ["--quant", quant] if quant else []
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "REDIS_URL": url})
        stack.callback(_end, process)
        _wait(port, process, Path(log.name))
        pids = {name: pid for pid, name in _named_children(process.pid)} | {"redis": store_process.pid}
        yield Site(port, pids, data / "site", process.pid)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server didn't become ready:\n{log.read_text()[-3000:]}")


def _named_children(parent: int) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status, command = (entry / "stat").read_text(), (entry / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        if int(status.rpartition(")")[2].split()[1]) == parent:
            yield from ((int(entry.name), name) for mark, name in _KINDS if mark in command)


# --- the client ------------------------------------------------------------------------------------


def run_clients(site: Site, model: str, prompts: list[list[int]], new: int) -> list[tuple[float, float]]:
    """All prompts at once, each by a client of its own.

    Returns:
        Of each, seconds to the first token, and in all.
    """
    dialect = DIALECTS["blazr-server"]
    bodies = [dialect.body(prompt, new) | {"model": model} for prompt in prompts]
    started, responses = exchange(site.port, dialect.path, bodies)
    found = []
    for lines in responses:
        data = [(at, line) for at, line in lines if line.startswith(b"data: {")]
        usage = json.loads(data[-1][1][6:]).get("usage") if data else None
        if not usage or usage["completion_tokens"] != new:
            raise SystemExit(f"a stream had no {new} tokens:\n{lines[:20]}")
        found.append((data[0][0] - started, lines[-1][0] - started))
    return found


def wave(
    site: Site, shape: LlamaShape, clients: int, prompt: int, new: int, seed: int | None = None
) -> list[tuple[float, float]]:
    """As many clients at once, one request each; another seed gives other prompts, which no prefix cache knows."""
    seed = clients if seed is None else seed
    return run_clients(site, shape.name, random_prompts(clients, prompt, shape.vocab_size, seed=seed), new)


def first_tokens(site: Site, shape: LlamaShape, repeats: int, prompt: int) -> list[float]:
    prompts = random_prompts(repeats, prompt, shape.vocab_size, seed=11)
    return [run_clients(site, shape.name, [item], 2)[0][0] for item in prompts]


# --- processor time --------------------------------------------------------------------------------


def processor_time(site: Site, shape: LlamaShape, *, clients: int, requests: int, new: int) -> dict[str, Any]:
    """Seconds per request with one token, and per further token of long streams, by process."""

    def waves(count: int, prompt: int, tokens: int) -> None:
        for _ in range(count):
            wave(site, shape, clients, prompt, tokens)

    def cost(work: Callable[[], None]) -> dict[str, float]:
        before = site.seconds()
        work()
        time.sleep(0.1)  # what a process does once the client has its last byte
        after = site.seconds()
        return {name: after[name] - before[name] for name in before}

    waves(3, 16, 8)  # first calls import and allocate
    rounds = max(1, requests // clients)
    started = time.perf_counter()
    short = cost(lambda: waves(rounds, 16, 1))
    short_s = time.perf_counter() - started
    started = time.perf_counter()
    long = cost(lambda: waves(1, 16, new))
    long_s = time.perf_counter() - started
    per_request = {name: value / (rounds * clients) for name, value in short.items()}
    tokens = clients * (new - 1)
    per_token = {name: (value - clients * per_request[name]) / tokens for name, value in long.items()}
    return {
        "request_s": per_request,
        "token_s": per_token,
        "requests_per_s": rounds * clients / short_s,
        "tokens_per_s": clients * new / long_s,
    }


# --- against the bare engine -----------------------------------------------------------------------


def ratio(
    site: Site, shape: LlamaShape, directory: Path, *, quant: str | None, clients: int, new: int, rounds: int
) -> dict[str, Any]:
    """Throughput over HTTP as a share of the bare engine's, and what HTTP adds to the first token, per round.

    Both are loaded all the time and take turns, so that a round's share belongs to the same seconds.
    """
    from bench.processes import Child

    engine = Child("engine", directory, quant=quant)
    shares, added = [], []
    try:
        engine.run("clients", batch=clients, prompt=128, new=4, seed=1)
        wave(site, shape, clients, 128, 4, seed=1)
        for number in range(rounds):
            bare = engine.run("clients", batch=clients, prompt=128, new=new, seed=100 + number)["tokens_per_s"]
            served_s = max(in_all for _, in_all in wave(site, shape, clients, 128, new, seed=100 + number))
            shares.append(clients * new / served_s / bare)
            # One by one in turns: the machine's own speed changes from second to second.
            for _ in range(15):
                alone = engine.run("first_token", prompt=16, repeats=1)["seconds"]
                served = first_tokens(site, shape, 1, 16)[0]
                added.append(1000 * (served - alone))
    finally:
        engine.close()
    return {"throughput_share": shares, "first_token_added_ms": added}


def report(found: dict[str, Any], console: Console) -> None:
    table = Table("processor time of", "ms per request", "µs per token", title_justify="left", box=None)
    cost = found["processor"]
    for name in sorted(cost["request_s"]):
        table.add_row(name, f"{1e3 * cost['request_s'][name]:.2f}", f"{1e6 * cost['token_s'][name]:.1f}")
    console.print(table)
    console.print(f"{cost['requests_per_s']:.0f} requests/s of one token, {cost['tokens_per_s']:.0f} tokens/s streamed")
    if "ratio" in found:
        for name, values in found["ratio"].items():
            console.print(f"{name}: median {Interval.of(values).whole()} of {len(values)}")


def main() -> None:
    """Parse options, measure, report, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.http_path", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-tiny")
    parser.add_argument("--dtype", default="auto", help="as blazr serve takes it")
    parser.add_argument("--quant", choices=("int8", "int4"), help="as blazr serve takes it")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=640, help="requests of one token each")
    parser.add_argument("--new", type=int, default=400, help="tokens of each long stream")
    parser.add_argument("--ratio", action="store_true", help="compare with the bare engine as well (128 in, 64 out)")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    directory = make_llama(shape, given.cache)
    with serve(directory, dtype="bfloat16" if given.ratio else given.dtype, quant=given.quant) as site:
        wave(site, shape, 2, 16, 4)  # loads the model
        found: dict[str, Any] = {
            "processor": processor_time(site, shape, clients=given.clients, requests=given.requests, new=given.new),
        }
        if given.ratio:
            found["ratio"] = ratio(
                site, shape, directory, quant=given.quant, clients=given.clients, new=64, rounds=given.rounds
            )
    report(found, Console())
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
