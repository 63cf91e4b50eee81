"""Decode steps of two versions in turns: ``python -m bench.step_turns --before ../before DIRECTORY [--batch 1,8]``.

``../before`` is a worktree of the older commit (``git worktree add ../before COMMIT``) whose native kernels are built.
Each version runs in a process of its own, which steps while the other one waits, so that both see the same state of the
machine. Prints the older version's time over this one's: median, 10th and 90th percentile. ``bench.versions`` compares
whole benchmarks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
WARM_UP = 8
LEAST_STEP_TOKENS = 128
PAUSE_S = 0.05
"""Before a turn, until the threads of the other process have stopped spinning."""


class Version:
    """A tree's process, which takes some steps for each line that it reads."""

    def __init__(self, tree: Path, options: Sequence[str]) -> None:
        self._tree = tree
        # The file of this tree with the modules of the other one, which may not have it yet.
        command = [sys.executable, str(Path(__file__).resolve()), "--child", *options]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.step_s()  # returns when the model is loaded and warm; this turn isn't counted

    def step_s(self) -> float:
        """Seconds of the median step of one turn."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The process of {self._tree} ended; its error is above.")
        return float(line)

    def close(self) -> None:
        self._process.communicate()


def child(given: argparse.Namespace) -> None:
    """Add the requests, then answer each line with the seconds of a median step."""
    from bench.child import random_prompts
    from bench.profile_step import add_requests, load
    from inference.llm.options import LLMOptions
    from inference.modelling.backends.native import library

    if not library.is_available():
        raise SystemExit("The native kernels are not built: python -m inference.modelling.backends.native.build")
    batch = int(given.batch)
    # The first sequence generates while the prompts of the others are still computed.
    tokens = given.context * batch // LEAST_STEP_TOKENS + WARM_UP + (given.rounds + 1) * given.steps + 1
    length = given.context + tokens
    llm = load(given.directory, LLMOptions(dtype=given.dtype, quant=given.quant, max_model_len=length))
    add_requests(llm, random_prompts(batch, given.context, 256), tokens)
    stats = llm.stats()
    # The prompts are computed when all but their last tokens, which generate, are.
    while stats["num_computed_tokens"] - stats["num_generated_tokens"] < batch * (given.context - 1):
        llm.step()
        stats = llm.stats()
    for _ in range(WARM_UP):
        llm.step()
    for _ in sys.stdin:
        times = []
        for _ in range(given.steps):
            started = time.perf_counter()
            llm.step()
            times.append(time.perf_counter() - started)
        print(statistics.median(times), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--before", type=Path, help="a worktree of the older commit")
    parser.add_argument("--batch", default="1,8", help="numbers of sequences, separated by commas")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default="none")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given)
    if given.before is None:
        parser.error("--before is needed")
    for batch in given.batch.split(","):
        options = [str(given.directory.resolve()), "--batch", batch]
        for name in ("context", "dtype", "quant", "rounds", "steps"):
            options += [f"--{name}", str(getattr(given, name))]
        versions = [Version(tree.resolve(), options) for tree in (given.before, HERE)]
        ratios = []
        for turn in range(given.rounds):
            times = [0.0, 0.0]
            for index in (0, 1) if turn % 2 == 0 else (1, 0):
                time.sleep(PAUSE_S)
                times[index] = versions[index].step_s()
            ratios.append(times[0] / times[1])
        for version in versions:
            version.close()
        low, *_, high = statistics.quantiles(ratios, n=10)
        print(f"batch {batch}: {statistics.median(ratios):.2f} times as fast as before ({low:.2f} to {high:.2f})")
    return None


if __name__ == "__main__":
    main()
