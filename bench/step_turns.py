"""Decodes or prefills of two versions in turns.

    python -m bench.step_turns --before ../before DIRECTORY [--batch 1,8] [--prefill 512]

``../before`` is a worktree of the older commit (``git worktree add ../before COMMIT``) whose native kernels are built.
Both versions are loaded and take turns within each round, so that they see the same state of the machine; rounds beside
other work are refused. Prints how many times as fast this version is: median (low to high). ``bench.versions`` compares
whole benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
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


def ratios(versions: list[Child], measure: Callable[[Child, int], dict[str, float]], rounds: int) -> list[float]:
    """This version's rate over the older one's in each undisturbed round; ``measure(child, round)``."""

    def take_turns(number: int) -> dict[str, float]:
        rates = {}
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rates[index] = measure(versions[index], number)["tokens_per_s"]
        return {"ratio": rates[1] / rates[0]}

    def own() -> list[int]:
        return [pid for child in versions for pid in family(child.process.pid)]

    take_turns(rounds)  # a version's first steps of a batch size are recorded
    return [found["ratio"] for found in undisturbed_rounds(own, take_turns, range(rounds))]


def decode_ratios(versions: list[Child], batch: int, given: argparse.Namespace) -> list[float]:
    """Prompts repeat: a prefix cache has them."""
    for child in versions:
        child.run("clients", batch=batch, prompt=given.context, new=2)  # computes the prompts
    return ratios(
        versions,
        lambda child, _: child.run("decode", batch=batch, prompt=given.context, new=given.new),
        given.rounds,
    )


def prefill_ratios(versions: list[Child], given: argparse.Namespace) -> list[float]:
    """Each round has a prompt of its own, which no prefix cache has."""
    return ratios(
        versions,
        lambda child, number: child.run("prefill", tokens=given.prefill, seed=number),
        given.rounds,
    )


def report(what: str, found: list[float]) -> None:
    words = f"{interval_of(found)} times as fast as before" if found else "other work disturbed every round"
    print(f"{what}: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the older commit")
    parser.add_argument("--batch", default="1,8", help="numbers of sequences, separated by commas")
    parser.add_argument("--context", type=positive, default=128)
    parser.add_argument("--prefill", type=positive, help="compare prefills of so many tokens instead")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", help="int8 or int4")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--new", type=positive, default=16, help="tokens of a sequence in a turn")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        versions = [stack.enter_context(contextlib.closing(start(t, given))) for t in (given.before.resolve(), ROOT)]
        if given.prefill:
            report(f"prefill of {given.prefill}", prefill_ratios(versions, given))
            return
        for batch in map(int, given.batch.split(",")):
            report(f"batch {batch}", decode_ratios(versions, batch, given))


if __name__ == "__main__":
    main()
