"""One cell of the benchmark: an implementation with one model in one round, all its tasks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.disturbance import Disturbed, family_of, undisturbed
from bench.figures import Figures, percentile
from bench.http_clients import DIALECTS, first_token_s, run_clients
from bench.implementations import Implementation, Job
from bench.processes import Child, PeerFailed

TASKS = ("decode1", "decode8", "decode32", "prefill512", "prefill4096", "load", "memory", "http", "own")
CLIENTS = (1, 8, 32)
_TTFT_PROMPT, _TTFT_REPEATS = 16, 15
_WARM_UP_TOKENS = 16
"""Before streams are measured: steps of the sizes that occur while requests come and go are prepared by then."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens and repeats of a run."""

    decode_new: int = 64
    http_prompt: int = 128
    http_new: int = 64
    enough_s: float = 5.0
    repeats: int = 3

    @staticmethod
    def decode_prompt(batch: int) -> int:
        """Shorter prompts for more sequences, or the peers' prefill would take most of the time."""
        return 128 if batch == 1 else 32

    def context(self, batch: int) -> float:
        """Mean tokens in the cache over the measured steps."""
        return self.decode_prompt(batch) + self.decode_new / 2


class Cell:
    """Measures one implementation once.

    Args:
        implementation: Which.
        moment: Name of the round.
        lengths: How much.
        seeds: Gives another seed each time, so that no prefix cache helps.
    """

    def __init__(
        self,
        figures: Figures,
        implementation: Implementation,
        job: Job,
        moment: str,
        lengths: Lengths,
        seeds: Callable[[], int],
        progress: Callable[[str], None],
    ) -> None:
        self._figures = figures
        self._implementation = implementation
        self._job = job
        self._model = job.checkpoint.name
        self._moment = moment
        self._lengths = lengths
        self._seeds = seeds
        self._progress = progress

    def measure(self, tasks: Sequence[str]) -> None:
        """All tasks that the implementation can do; what fails is noted and the others go on."""
        mine = [task for task in tasks if task.rstrip("0123456789") in self._implementation.tasks]
        in_process = [task for task in mine if task != "http" or self._implementation.start_server is None]
        if self._implementation.peer == "blazr" and "http" in mine:
            in_process.append("bare")
        if in_process:
            self._with_child(self._implementation.start, in_process)
        if "http" in mine and self._implementation.start_server is not None:
            self._with_child(self._implementation.start_server, ["http-server"])

    def _with_child(self, start: Callable[[Job], Child], tasks: Sequence[str]) -> None:
        self._progress("load")
        try:
            child = start(replace(self._job, cold="load" in tasks))
        except PeerFailed as error:
            for task in tasks:
                self._figures.fail(self._model, self._implementation.name, task, str(error))
            return
        if child.facts.get("native") is False:
            self._figures.fail(self._model, self._implementation.name, "native kernels", "none are built: torch only")
        try:
            for task in tasks:
                self._progress(task)
                try:
                    self._task(child, task)
                except (PeerFailed, Disturbed, RuntimeError, OSError) as error:
                    self._figures.fail(self._model, self._implementation.name, task, str(error))
                    if child.process.poll() is not None:
                        return
        finally:
            child.close()

    def _record(self, figure: str, value: float) -> None:
        self._figures.add(self._model, self._implementation.name, figure, self._moment, value)

    def _task(self, child: Child, task: str) -> None:
        lengths = self._lengths
        kind, count = task.rstrip("0123456789"), int(task.lstrip("abcdefghijklmnopqrstuvwxyz-") or 0)
        if kind == "decode":
            child.run("decode", batch=count, prompt=16, new=8, seed=self._seeds())  # warm-up
            values = {"batch": count, "prompt": lengths.decode_prompt(count), "new": lengths.decode_new}
            self._record(task, self._repeat(child, lambda: child.run("decode", **values, seed=self._seeds())))
        elif kind == "prefill":
            self._record(
                task,
                self._repeat(child, lambda: child.run("prefill", tokens=count, seed=self._seeds()), warm_up=True),
            )
        elif task == "load":
            if child.facts["load_disturbed"]:
                raise Disturbed(child.facts["load_disturbed"])
            self._record("load s", child.facts["load_s"])
            self._record("read s", self._alone(child, lambda: child.run("time_to_read"))["seconds"])
        elif task == "memory":
            self._memory(child)
        elif task == "own":
            child.run("own_work", batch=32, prompt=1, new=8, seed=self._seeds())
            measured = self._alone(child, lambda: child.run("own_work", batch=32, prompt=1, new=64, seed=self._seeds()))
            self._record("own share", measured["share"])
        elif task == "http":
            self._streams(child, "http", lambda clients, new: self._in_process(child, clients, new))
        elif task == "bare":
            self._streams(child, "bare", lambda clients, new: self._in_process(child, clients, new))
            child.run("first_token", prompt=_TTFT_PROMPT, repeats=3, seed=self._seeds())
            values = {"prompt": _TTFT_PROMPT, "repeats": _TTFT_REPEATS}
            measured = self._alone(child, lambda: child.run("first_token", **values, seed=self._seeds()))
            self._record("bare first token s", measured["seconds"])
        elif task == "http-server":
            self._server(child)

    def _memory(self, child: Child) -> None:
        """The peak after some work at batch 8 (the first step of a batch allocates)."""
        child.run("decode", batch=8, prompt=32, new=16, seed=self._seeds())
        self._record("peak bytes", child.run("memory")["peak_bytes"])
        for name in ("weights_bytes", "cache_bytes"):
            if name in child.facts:
                self._record(name.replace("_", " "), child.facts[name])

    def _alone(self, child: Child, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer of a measurement that nothing else computed beside."""
        return undisturbed(family_of(child.process.pid), measure)[0]

    def _repeat(self, child: Child, measure: Callable[[], dict[str, Any]], *, warm_up: bool = False) -> float:
        """Median of a few calls that nothing disturbed; at least one, whatever the warm-up took."""
        started = time.perf_counter()
        values: list[float] = []
        if warm_up:
            measure()
        while not values or (
            len(values) < self._lengths.repeats and time.perf_counter() - started < self._lengths.enough_s
        ):
            values.append(self._alone(child, measure)["tokens_per_s"])
        return statistics.median(values)

    def _in_process(self, child: Child, clients: int, new: int) -> dict[str, Any]:
        return child.run("clients", batch=clients, prompt=self._lengths.http_prompt, new=new, seed=self._seeds())

    def _streams(self, child: Child, name: str, run: Callable[[int, int], dict[str, Any]]) -> None:
        for clients in CLIENTS:
            self._progress(f"{name} {clients}")
            run(clients, _WARM_UP_TOKENS)
            measured = self._alone(child, lambda clients=clients: run(clients, self._lengths.http_new))  # type: ignore[misc]
            self._record(f"{name}{clients}", measured["tokens_per_s"])
            for figure in ("ttft", "itl"):
                for share in (50, 99):
                    value = percentile(measured[f"{figure}_s"], share / 100)
                    self._record(f"{name}{clients} {figure} p{share} s", value)

    def _server(self, child: Child) -> None:
        port = int(child.facts["port"])
        dialect = DIALECTS["llama-server" if self._implementation.peer == "llama-cpp" else "blazr-server"]
        lengths, vocab_size = self._lengths, self._job.vocab_size

        def run(clients: int, new: int) -> dict[str, Any]:
            return run_clients(
                port,
                dialect,
                clients=clients,
                prompt=lengths.http_prompt,
                new=new,
                vocab_size=vocab_size,
                seed=self._seeds(),
            )

        self._streams(child, "http", run)

        def first(repeats: int) -> dict[str, Any]:
            seconds = first_token_s(
                port, dialect, repeats=repeats, prompt=_TTFT_PROMPT, vocab_size=vocab_size, seed=self._seeds()
            )
            return {"seconds": seconds}

        first(3)
        self._record("http first token s", self._alone(child, lambda: first(_TTFT_REPEATS))["seconds"])
        self._record("server peak bytes", child.run("memory")["peak_bytes"])
