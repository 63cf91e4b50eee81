"""python -m bench: the engine against transformers, and the server over HTTP against the bare engine.

One run, one machine, the same random weights in bfloat16; implementations take turns in rounds, each in a
process of its own, and the table shows the median, smallest and greatest value of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.http_clients import first_tokens, run_clients
from bench.weights import SHAPES, LlamaShape, make_llama

PROMPT, NEW = 128, 128
CLIENTS = (1, 8, 32)
START_TIMEOUT_S = 120


class Child:
    """Handle of a ``bench.child`` process."""

    def __init__(self, kind: str, directory: Path) -> None:
        command = [sys.executable, "-m", "bench.child", kind, str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def ask(self, name: str, **values: int) -> dict[str, float]:
        """Run one command and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": name, **values}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured process ended; its error is above")
        answer: dict[str, float] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


class Server:
    """``blazr serve`` on a free port with a data directory of its own."""

    def __init__(self, directory: Path, data: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        blazr = str(Path(sys.executable).with_name("blazr"))
        command = [blazr, "serve", "--model", str(directory), "--port", str(self.port), "--data-dir", str(data)]
        command += ["--dtype", "bfloat16"]
        self.log = (data / "serve.log").open("w")
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self._wait()

    def _wait(self) -> None:
        while time.monotonic() - self.started < START_TIMEOUT_S:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    self.ready_s = time.monotonic() - self.started
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.close()
        raise SystemExit(f"the server didn't become ready:\n{Path(self.log.name).read_text()[-3000:]}")

    def close(self) -> None:
        """Drain and end."""
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Figures:
    """All samples by name."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """Note one round's value."""
        self.samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Median over the rounds."""
        return statistics.median(self.samples[name])

    def ratio(self, first: str, second: str) -> tuple[float, float, float]:
        """Median, smallest and greatest of the rounds' ratios."""
        ratios = [a / b for a, b in zip(self.samples[first], self.samples[second], strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def measure(shape: LlamaShape, directory: Path, rounds: int, console: Console) -> Figures:
    """Run everything; implementations alternate within each round."""
    figures = Figures()
    console.print("Starting transformers, the bare engine and the server")
    peer, engine = Child("transformers", directory), Child("engine", directory)
    with tempfile.TemporaryDirectory(prefix="blazr-bench-") as data:
        server = Server(directory, Path(data))
        figures.add("server ready s", server.ready_s)
        try:
            asyncio.run(run_clients(server.port, shape.name, 2, 16, 4, shape.vocab_size))  # loads the model
            for number in range(rounds):
                console.print(f"Round {number + 1} of {rounds}")
                measure_round(figures, shape, peer, engine, server)
        finally:
            server.close()
            peer.close()
            engine.close()
    return figures


def measure_round(figures: Figures, shape: LlamaShape, peer: Child, engine: Child, server: Server) -> None:
    """One value of each figure."""
    for child, name in ((peer, "transformers"), (engine, "engine")):
        figures.add(f"{name} prefill 512", child.ask("prefill", tokens=512)["tokens_per_s"])
        figures.add(f"{name} decode 1", child.ask("decode", batch=1, prompt=PROMPT, new=NEW)["tokens_per_s"])
    for batch in CLIENTS[1:]:
        figures.add(f"engine decode {batch}", engine.ask("decode", batch=batch, prompt=PROMPT, new=NEW)["tokens_per_s"])
    for clients in CLIENTS:
        bare = engine.ask("serve", batch=clients, prompt=PROMPT, new=NEW)["tokens_per_s"]
        figures.add(f"engine {clients} requests", bare)
        started = time.perf_counter()
        times = asyncio.run(run_clients(server.port, shape.name, clients, PROMPT, NEW, shape.vocab_size))
        elapsed = time.perf_counter() - started
        figures.add(f"HTTP {clients} clients", sum(item.tokens for item in times) / elapsed)
        figures.add(f"HTTP {clients} clients TTFT p50 s", statistics.median(item.first_token_s for item in times))
    figures.add("engine first token s", engine.ask("first_token", prompt=16, repeats=15)["seconds"])
    over_http = asyncio.run(first_tokens(server.port, shape.name, 15, 16, shape.vocab_size))
    figures.add("HTTP first token s", statistics.median(over_http))


def report(figures: Figures, console: Console) -> list[dict[str, Any]]:
    """Print the table of figures and that of targets; return the targets as data."""
    table = Table(title="Figures (median, min, max of the rounds)", title_justify="left", box=None)
    for heading in ("what", "median", "min", "max"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, samples in figures.samples.items():
        unit = (1000.0, " ms") if name.endswith(" s") and "ready" not in name else (1.0, "")
        row = [f"{value * unit[0]:.1f}{unit[1]}" for value in (statistics.median(samples), min(samples), max(samples))]
        table.add_row(name, *row)
    console.print(table)
    targets: list[dict[str, Any]] = []

    def target(what: str, value: tuple[float, float, float], low: float | None, high: float | None, unit: str) -> None:
        met = (low is None or value[0] >= low) and (high is None or value[0] <= high)
        bound = f"≥ {low:g}" if low is not None else f"≤ {high:g}"
        targets.append(
            {"what": what, "median": value[0], "min": value[1], "max": value[2], "target": bound, "met": met}
        )
        shown = " / ".join(f"{item:.2f}" for item in value)
        console.print(f"{'[green]met[/]   ' if met else '[red]missed[/]'} {what}: {shown}{unit} (target {bound}{unit})")

    target(
        "decode, 1 request / transformers", figures.ratio("engine decode 1", "transformers decode 1"), 1.0, None, "×"
    )
    target(
        "prefill 512 / transformers", figures.ratio("engine prefill 512", "transformers prefill 512"), 1.0, None, "×"
    )
    target("HTTP, 1 client / transformers", figures.ratio("HTTP 1 clients", "transformers decode 1"), 1.0, None, "×")
    target(
        "HTTP, 32 clients together / transformers' single stream",
        figures.ratio("HTTP 32 clients", "transformers decode 1"),
        4.0,
        None,
        "×",
    )
    target("HTTP / bare engine, 32 clients", figures.ratio("HTTP 32 clients", "engine 32 requests"), 0.95, None, "×")
    pairs = zip(figures.samples["HTTP first token s"], figures.samples["engine first token s"], strict=True)
    added = sorted((a - b) * 1000 for a, b in pairs)
    target("HTTP adds to the first token", (statistics.median(added), added[0], added[-1]), None, 10.0, " ms")
    return targets


def main() -> None:
    """Parse options, measure, report, save."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench", help="where weights are kept"
    )
    parser.add_argument("--json", type=Path, help="write the samples and targets here as well")
    arguments = parser.parse_args()
    console = Console()
    shape = SHAPES[arguments.shape]
    console.print(f"Weights of {shape.name} (random, seeded)")
    figures = measure(shape, make_llama(shape, arguments.cache), arguments.rounds, console)
    targets = report(figures, console)
    if arguments.json:
        values = {"shape": shape.name, "machine": platform.processor() or platform.machine(), "targets": targets}
        arguments.json.write_text(json.dumps(values | {"samples": figures.samples}, indent=2) + "\n")


if __name__ == "__main__":
    main()
