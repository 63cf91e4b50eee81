"""Decoding against one peer and against memory, in turns of a second: ``python -m bench.in_turns --models hybrid``.

The bandwidth of a shared machine changes within minutes, by half and more. Here both implementations and a reader of
memory are loaded at the same time and take turns within each round, so that a round's ratio and its share of
the bound belong to the same seconds. Values beside which other work was done are refused (``bench.disturbance``).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from pathlib import Path

from bench.__main__ import names, positive
from bench.bounds import read_sizes
from bench.disturbance import family, undisturbed_rounds
from bench.environments import Environments
from bench.figures import interval_of
from bench.implementations import IMPLEMENTATIONS, PEERS, Implementation, Job
from bench.processes import Child
from bench.weights import CHECKPOINTS, make_checkpoint

PROMPT = 128


def implementation(peer: str, bits: int) -> Implementation:
    """The first one that the tables have of a peer with so many bits."""
    return next(item for item in IMPLEMENTATIONS if item.peer == peer and item.bits == bits)


def measure(job: Job, peer: str, bits: int, rounds: int, new: int) -> list[tuple[float, float, float]]:
    """Of each undisturbed round: our tokens per second, the peer's, and the bytes per second that memory gave."""
    with contextlib.ExitStack() as stack:

        def start(child: Child) -> Child:
            stack.callback(child.close)
            return child

        reader = start(Child("machine"))
        ours = start(implementation("blazr", bits).start(job))
        other = start(implementation(peer, bits).start(job))
        for child in (ours, other):
            child.run("decode", batch=1, prompt=16, new=8)
        reader.run("read")

        def take_turns(seed: int) -> dict[str, float]:
            first, second = (ours, other) if seed % 2 else (other, ours)
            read = [reader.run("read")["bytes_per_s"]]
            rates = {}
            for child in (first, second):
                result = child.run("decode", batch=1, prompt=PROMPT, new=new, seed=seed)
                rates[child] = result["tokens_per_s"]
                read.append(reader.run("read")["bytes_per_s"])
            return {"ours": rates[ours], "other": rates[other], "read": statistics.median(read)}

        def own() -> list[int]:
            return [pid for child in (reader, ours, other) for pid in family(child.process.pid)]

        found = undisturbed_rounds(own, take_turns, range(100, 100 + rounds))
        return [(values["ours"], values["other"], values["read"]) for values in found]


def main() -> None:
    """Print one line for each model and number of bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names(list(CHECKPOINTS)), default=["mamba2", "hybrid"])
    parser.add_argument("--bits", type=names(("16", "8", "4")), default=["16"])
    parser.add_argument("--peer", choices=[name for name in PEERS if name != "transformers"], default="llama-cpp")
    parser.add_argument("--rounds", type=positive, default=8)
    parser.add_argument("--new", type=positive, default=48, help="tokens of a turn")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    given = parser.parse_args()
    environments = Environments(given.cache, print)
    for model in given.models:
        checkpoint = make_checkpoint(model, given.cache / "checkpoints")
        sizes = read_sizes(checkpoint)
        for bits in map(int, given.bits):
            job = Job(checkpoint, sizes.vocab_size, environments)
            found = measure(job, given.peer, bits, given.rounds, given.new)
            if not found:
                print(f"{model}, {bits} bits: other work disturbed every round")
                continue
            stored = implementation("blazr", bits).stored_bits or bits
            bytes_read = sizes.bytes_read(1, PROMPT + given.new / 2, stored)
            print(
                f"{model}, {bits} bits, {len(found)} rounds: {interval_of([a for a, _, _ in found], 1)} tokens/s, "
                f"{given.peer} {interval_of([b for _, b, _ in found], 1)}, "
                f"ratio {interval_of([a / b for a, b, _ in found])}; "
                f"memory {interval_of([c / 1e9 for _, _, c in found], 1)} GB/s, "
                f"of the bound {interval_of([a * bytes_read / c for a, _, c in found])}, "
                f"{given.peer} {interval_of([b * bytes_read / c for _, b, c in found])}"
            )


if __name__ == "__main__":
    main()
