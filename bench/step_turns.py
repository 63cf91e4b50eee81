"""Decode steps of two versions in turns: ``python -m bench.step_turns --before ../before DIRECTORY [--batch 1,8]``.

``../before`` is a worktree of the older commit (``git worktree add ../before COMMIT``) whose native kernels are built.
Both versions are loaded and take turns within each round, so that they see the same state of the machine; rounds beside
other work are refused. Prints how many times as fast this version decodes: median (low to high). ``bench.versions``
compares whole benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from bench.__main__ import positive
from bench.disturbance import family, undisturbed_rounds
from bench.figures import interval_of
from bench.processes import ROOT, Child


def start(tree: Path, given: argparse.Namespace) -> Child:
    child = Child("engine", given.directory.resolve(), tree=tree, dtype=given.dtype, quant=given.quant)
    if not child.facts["native"]:
        child.close()
        raise SystemExit(f"no native kernels in {tree}: python -m inference.modelling.backends.native.build")
    return child


def decode_ratios(versions: list[Child], batch: int, given: argparse.Namespace) -> list[float]:
    """This version's rate over the older one's in each undisturbed round. Prompts repeat: a prefix cache has them."""

    def take_turns(number: int) -> dict[str, float]:
        rates = {}
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rates[index] = versions[index].run("decode", batch=batch, prompt=given.context, new=given.new)
        return {"ratio": rates[1]["tokens_per_s"] / rates[0]["tokens_per_s"]}

    def own() -> list[int]:
        return [pid for child in versions for pid in family(child.process.pid)]

    for child in versions:
        child.run("clients", batch=batch, prompt=given.context, new=2)  # computes the prompts
    take_turns(0)  # the first steps of a batch size are recorded
    return [found["ratio"] for found in undisturbed_rounds(own, take_turns, range(given.rounds))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the older commit")
    parser.add_argument("--batch", default="1,8", help="numbers of sequences, separated by commas")
    parser.add_argument("--context", type=positive, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", help="int8 or int4")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--new", type=positive, default=16, help="tokens of a sequence in a turn")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        versions = [stack.enter_context(contextlib.closing(start(t, given))) for t in (given.before.resolve(), ROOT)]
        for batch in map(int, given.batch.split(",")):
            ratios = decode_ratios(versions, batch, given)
            words = f"{interval_of(ratios)} times as fast as before" if ratios else "other work disturbed every round"
            print(f"batch {batch}: {words}", flush=True)


if __name__ == "__main__":
    main()
