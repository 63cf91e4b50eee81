"""Whether this processor reads weights faster from several pages in turn: ``python -m bench.read_order DIRECTORY``.

Decodes the same requests by turns with weights prefetched as they lie and from eight pages in turn (decision 36), some
steps each, in one process, and prints the ratio of the times: median, 10th and 90th percentile. The results don't
depend on the order; `read_ahead.cpp` has the processors that read in pages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from bench.child import random_prompts
from bench.profile_step import add_requests, load
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends.native import library

PROMPT = 64
WARM_UP = 8
LEAST_VOCABULARY = 256


def median_step_s(llm: LLM, steps: int, in_pages: bool) -> float:
    """Seconds of the median step; the first step behind a change of the order isn't timed."""
    torch.ops.blazr.read_in_pages(in_pages)
    llm.step()
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        llm.step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--batch", default="1", help="numbers of sequences, separated by commas")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default="none")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    if not library.is_available():
        sys.stderr.write("The native kernels are not built: python -m inference.modelling.backends.native.build\n")
        return 1
    tokens = WARM_UP + 2 * given.rounds * (given.steps + 1) + 1
    for batch in map(int, given.batch.split(",")):
        llm = load(given.directory, LLMOptions(dtype=given.dtype, quant=given.quant, max_model_len=PROMPT + tokens))
        add_requests(llm, random_prompts(batch, PROMPT, LEAST_VOCABULARY), tokens)
        for _ in range(WARM_UP):
            llm.step()
        ratios = []
        for turn in range(given.rounds):
            orders = (True, False) if turn % 2 == 0 else (False, True)
            times = {in_pages: median_step_s(llm, given.steps, in_pages) for in_pages in orders}
            ratios.append(times[False] / times[True])
        llm.close()
        low, *_, high = statistics.quantiles(ratios, n=10)
        median = statistics.median(ratios)
        sys.stdout.write(f"batch {batch}: in pages {median:.2f} times as fast ({low:.2f} to {high:.2f})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
