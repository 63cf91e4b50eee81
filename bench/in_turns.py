"""Decoding and prefill against peers and against memory, in turns: ``python -m bench.in_turns --models hybrid``.

The bandwidth of a shared machine changes within minutes, by half and more. Here all implementations and a reader of
memory are loaded at the same time and take turns within each round, so that a round's ratios and its share of
the bound belong to the same seconds. Values beside which other work was done are refused (``bench.disturbance``).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.__main__ import names, positive
from bench.bounds import Sizes, read_sizes
from bench.disturbance import family, undisturbed_rounds
from bench.environments import Environments
from bench.figures import interval_of
from bench.implementations import IMPLEMENTATIONS, PEERS, Implementation, Job
from bench.processes import Child, PeerFailed
from bench.weights import CHECKPOINTS, make_checkpoint

PROMPT = 128
BATCHES = {"decode1": 1, "decode8": 8}
TASKS = (*BATCHES, "prefill512")
OURS = "blazr"


@dataclass(frozen=True, slots=True)
class Round:
    """What one undisturbed round measured.

    Attributes:
        rates: Tokens per second by implementation.
        bytes_per_s: What memory gave in the same seconds.
    """

    rates: dict[str, float]
    bytes_per_s: float


def implementation(peer: str, bits: int) -> Implementation:
    """The first one that the tables have of a peer with so many bits."""
    return next(item for item in IMPLEMENTATIONS if item.peer == peer and item.bits == bits)


class Turns:
    """Our engine, peers and a reader of memory, all loaded; ``close`` ends them.

    Args:
        peers: Names of ``PEERS``; one that can't load the checkpoint is reported and left out.
    """

    def __init__(self, job: Job, peers: list[str], bits: int) -> None:
        self._stack = contextlib.ExitStack()
        self._reader = self._start(Child("machine"))
        self.children = {OURS: self._start(implementation(OURS, bits).start(job))}
        for peer in peers:
            try:
                self.children[peer] = self._start(implementation(peer, bits).start(job))
            except PeerFailed as error:
                print(f"{job.checkpoint.name}: {peer} is left out: {error}")
        for child in self.children.values():
            child.run("decode", batch=1, prompt=16, new=8)
        self._reader.run("read")

    def _start(self, child: Child) -> Child:
        self._stack.callback(child.close)
        return child

    def close(self) -> None:
        self._stack.close()

    def measure(self, task: str, rounds: int, new: int) -> list[Round]:
        """Return the undisturbed rounds of a task of ``TASKS``.

        Args:
            new: Tokens that each sequence decodes.
        """
        command, values = command_of(task, new)

        def take_turns(seed: int) -> dict[str, Any]:
            order = list(self.children)
            if seed % 2:
                order.reverse()
            read = [self._reader.run("read")["bytes_per_s"]]
            rates = {}
            for name in order:
                rates[name] = self.children[name].run(command, **values, seed=seed)["tokens_per_s"]
                read.append(self._reader.run("read")["bytes_per_s"])
            return {"rates": rates, "read": statistics.median(read)}

        def own() -> list[int]:
            return [pid for child in (self._reader, *self.children.values()) for pid in family(child.process.pid)]

        take_turns(99)  # first calls of a batch size allocate and compile
        found = undisturbed_rounds(own, take_turns, range(100, 100 + rounds))
        return [Round(values["rates"], values["read"]) for values in found]


def command_of(task: str, new: int) -> tuple[str, dict[str, int]]:
    """Return the command that children have for a task, and its values without the seed."""
    if task in BATCHES:
        return "decode", {"batch": BATCHES[task], "prompt": PROMPT, "new": new}
    return "prefill", {"tokens": int(task.removeprefix("prefill"))}


def describe(rounds: list[Round], bytes_read: float | None) -> str:
    """Return one line: our rate, each peer's with the ratio, and shares of the bound where a step has one.

    Args:
        bytes_read: Bytes that a decoding step of one sequence must read; None: memory isn't the bound.
    """
    words = [f"{len(rounds)} rounds", f"{interval_of([item.rates[OURS] for item in rounds], 1)} tokens/s"]
    for name in rounds[0].rates:
        if name != OURS:
            rates = interval_of([item.rates[name] for item in rounds], 1)
            ratio = interval_of([item.rates[OURS] / item.rates[name] for item in rounds])
            words.append(f"{name} {rates}, ratio {ratio}")
    if bytes_read is not None:
        words.append(f"memory {interval_of([item.bytes_per_s / 1e9 for item in rounds], 1)} GB/s")
        for name in rounds[0].rates:
            share = interval_of([item.rates[name] * bytes_read / item.bytes_per_s for item in rounds])
            words.append(f"{name} at {share} of the bound")
    return "; ".join(words)


def compare(job: Job, sizes: Sizes, given: argparse.Namespace, bits: int) -> None:
    """Measure one checkpoint at one number of bits, and print a line for each task."""
    with contextlib.closing(Turns(job, given.peer, bits)) as turns:
        for task in given.tasks:
            label = f"{job.checkpoint.name}, {bits} bits, {task}"
            found = turns.measure(task, given.rounds, given.new)
            if not found:
                print(f"{label}: other work disturbed every round", flush=True)
                continue
            stored = implementation(OURS, bits).stored_bits or bits
            bytes_read = sizes.bytes_read(1, PROMPT + given.new / 2, stored) if task == "decode1" else None
            print(f"{label}: {describe(found, bytes_read)}", flush=True)


def main() -> None:
    """Print one line for each model, number of bits and task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names(list(CHECKPOINTS)), default=["mamba2", "hybrid"])
    parser.add_argument("--bits", type=names(("16", "8", "4")), default=["16"])
    parser.add_argument("--tasks", type=names(TASKS), default=["decode1"])
    parser.add_argument("--peer", type=names(PEERS), default=["llama-cpp"])
    parser.add_argument("--rounds", type=positive, default=8)
    parser.add_argument("--new", type=positive, default=48, help="tokens of a turn")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    given = parser.parse_args()
    environments = Environments(given.cache, print)
    for model in given.models:
        checkpoint = make_checkpoint(model, given.cache / "checkpoints")
        sizes = read_sizes(checkpoint)
        for bits in map(int, given.bits):
            compare(Job(checkpoint, sizes.vocab_size, environments), sizes, given, bits)


if __name__ == "__main__":
    main()
