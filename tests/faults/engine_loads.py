"""Load and unload two models in turns under traffic: ``python -m tests.faults.engine_loads --cycles 250``.

The models have different weights and don't fit together. Every request has to get its own model's tokens, and the
memory of the process, its threads and its open files must not grow.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from inference.host.machine import return_freed_memory
from inference.llm.llm import LLM
from tests.inference.llm.harness import OPTIONS, Checkpoint
from tests.inference.worker.fakes import FakePlans, message, wait_until
from tests.inference.worker.harness import Bench

WARM_UP = 5
"""Cycles before the first measurement: allocators and caches of the libraries grow until then."""
MAX_GROWTH = 0.05
PROMPTS = ("the quick", "brown fox jumps", "over the lazy dog " * 4)
PARAMS = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True)
class Resources:
    """What the process holds, after a cycle."""

    rss_bytes: int
    num_threads: int
    num_files: int


def measure() -> Resources:
    gc.collect()
    return_freed_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Resources(
        pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    )


class Loads:
    """Cycles of loads and unloads of two models, with requests meanwhile.

    Attributes:
        num_requests: Requests that ended.
        problems: Requests that got other tokens than in a run alone.
    """

    def __init__(self, directory: Path) -> None:
        self._checkpoints = {name: _checkpoint(directory / name, sign) for name, sign in (("a", 1.0), ("b", -1.0))}
        self._alone: dict[tuple[str, str], list[int]] = {}
        for name in self._checkpoints:
            llm = self._load(name)
            for prompt in PROMPTS:
                self._alone[name, prompt] = _generate(llm, prompt)
            size = llm.total_bytes()
            llm.close()
        assert self._alone["a", PROMPTS[0]] != self._alone["b", PROMPTS[0]], "the models must differ"
        plans = FakePlans(needed=size, make=self._load, max_num_seqs=OPTIONS.max_num_seqs)  # type: ignore[arg-type]
        self._bench = Bench(plans, budget=size + size // 2)
        self._serial = itertools.count()
        self.num_requests = 0
        self.problems: list[str] = []

    @property
    def num_loads(self) -> int:
        return len(self._bench.plans.loads)

    def cycle(self) -> None:
        """Load each model once, which evicts the other; orders to unload arrive while prompts are computed."""
        sent: list[tuple[str, str, str]] = []
        for name in self._checkpoints:
            for prompt in PROMPTS:
                sent.append((self._send(name, prompt), name, prompt))
            first = sent[-len(PROMPTS)][0]
            wait_until(lambda first=first: first in self._bench.client.events)
            self._bench.manager.unload(name)
        dropped = self._send("a", PROMPTS[2])
        self._bench.manager.cancel(dropped)
        self._bench.client.wait(*(request_id for request_id, *_ in sent), timeout_s=60)
        for request_id, name, prompt in sent:
            self.num_requests += 1
            if (found := self._bench.client.tokens(request_id)) != self._alone[name, prompt]:
                self.problems.append(f"{request_id} of model {name}: {found}, alone {self._alone[name, prompt]}")
        self._bench.client.events.clear()
        self._bench.client.calls.clear()

    def stop(self) -> None:
        """Unload everything."""
        self._bench.manager.drain(5)
        if self._bench.dead:
            self.problems.append(f"an engine died: {self._bench.dead[0].message}")

    def _send(self, name: str, prompt: str) -> str:
        request_id = f"r{next(self._serial)}"
        self._bench.send(request_id, model=name, text=prompt, params=PARAMS)
        return request_id

    def _load(self, name: str) -> Any:
        found = self._checkpoints[name]
        return LLM.load(found.spec, found.tokenizer, found.files, OPTIONS)


def _generate(llm: LLM, prompt: str) -> list[int]:
    """Return the tokens of a request that runs alone."""
    llm.add(llm.prepare(message("alone", text=prompt, params=PARAMS)))
    tokens: list[int] = []
    while llm.has_unfinished():
        tokens += [token for event in llm.step() for token in event.get("token_ids", ())]
    return tokens


def _checkpoint(directory: Path, sign: float) -> Checkpoint:
    directory.mkdir()
    found = Checkpoint(directory)
    tensors = load_file(found.files[0])
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * sign
    save_file(tensors, found.files[0])
    return found


def main() -> int:
    """Return 0 if all tokens were right and nothing grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.engine_loads", description=__doc__)
    parser.add_argument("--cycles", type=int, default=250, help="loads and unloads of each of the two models")
    cycles = parser.parse_args().cycles
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        loads = Loads(Path(directory))
        for _ in range(WARM_UP):
            loads.cycle()
        before = measure()
        for _ in range(cycles):
            loads.cycle()
        after = measure()
        loads.stop()
    growth = after.rss_bytes / before.rss_bytes - 1
    sys.stdout.write(
        f"{loads.num_loads} loads, {loads.num_requests} requests, {len(loads.problems)} problems; "
        f"memory {growth:+.1%}, {before} to {after}, {time.monotonic() - started:.0f} s\n"
    )
    for problem in loads.problems[:20]:
        sys.stdout.write(f"  {problem}\n")
    return 1 if loads.problems or growth > MAX_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
