"""Whether this processor reads weights faster from several pages in turn: ``python -m bench.read_order DIRECTORY``.

Decodes the same requests by turns with weights prefetched as they lie and from eight pages in turn (decision 36), in
one process, and prints how many times as fast the second order is: median (low to high). The results don't depend on
the order; `read_ahead.cpp` has the processors that read in pages.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from bench.__main__ import positive
from bench.figures import interval_of
from bench.profile_step import load
from bench.recurrent_models import decode_ms
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends.native import library


def decode_ratio(llm: LLM, batch: int, steps: int, is_pages_first: bool) -> float:
    """Time of a step in line over that in pages."""
    times = {}
    for in_pages in (is_pages_first, not is_pages_first):
        torch.ops.blazr.read_in_pages(in_pages)
        times[in_pages] = decode_ms(llm, batch, steps, time.perf_counter)
    return times[False] / times[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--batch", default="1", help="numbers of sequences, separated by commas")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default="none")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--steps", type=positive, default=8)
    given = parser.parse_args()
    if not library.is_available():
        raise SystemExit("no native kernels here: python -m inference.modelling.backends.native.build")
    llm = load(given.directory, LLMOptions(dtype=given.dtype, quant=given.quant, max_model_len=2048))
    for batch in map(int, given.batch.split(",")):
        ratios = [decode_ratio(llm, batch, given.steps, turn % 2 == 0) for turn in range(given.rounds)]
        print(f"batch {batch}: in pages {interval_of(ratios)} times as fast", flush=True)
    llm.close()


if __name__ == "__main__":
    main()
