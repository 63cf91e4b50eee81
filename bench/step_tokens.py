"""What fewer tokens in a step cost a prefill, and spare others: ``python -m bench.step_tokens DIRECTORY``.

Each round computes, with each number of ``--tokens`` in turn, one long prompt alone and then the same prompt beside a
request that already generates. Prints the medians: tokens per second of the prompt alone, relative to the last number,
and the longest time that the other request waited for a token.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from bench.child import random_prompts
from bench.profile_step import add_requests, finish, load
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions


def prefill_s(llm: LLM, prompt: list[int]) -> float:
    """Seconds that the prompt takes alone."""
    started = time.perf_counter()
    add_requests(llm, [prompt], 1)
    finish(llm)
    return time.perf_counter() - started


def longest_step_s(llm: LLM, prompt: list[int]) -> float:
    """The longest step while the prompt is computed beside a request that generates."""
    before = llm.stats()["num_generated_tokens"]
    add_requests(llm, [prompt[:8]], len(prompt))
    while llm.stats()["num_generated_tokens"] == before:
        llm.step()
    add_requests(llm, [prompt], 1, first=1)
    longest, num_open = 0.0, 2
    while num_open > 1:
        started = time.perf_counter()
        llm.step()
        longest = max(longest, time.perf_counter() - started)
        stats = llm.stats()
        num_open = stats["num_running"] + stats["num_waiting"]
    llm.abort("profile-0")
    finish(llm)
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokens", default="128,256,512", help="most tokens of a step, the last one to compare with")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shared = LLMOptions(
        dtype=given.dtype, quant=given.quant, max_model_len=2 * given.prompt, cache_bytes=1 << 29, prefix_cache=False
    )
    llms = {
        number: load(given.directory, replace(shared, max_num_batched_tokens=number))
        for number in map(int, given.tokens.split(","))
    }
    alone: dict[int, list[float]] = {number: [] for number in llms}
    beside: dict[int, list[float]] = {number: [] for number in llms}
    for round_number in range(given.rounds + 1):
        for number, llm in llms.items():
            (prompt,) = random_prompts(1, given.prompt, llm._running_engine()._vocab_size, seed=round_number)
            seconds = prefill_s(llm, prompt), longest_step_s(llm, prompt)
            if round_number:  # the first one warms up
                alone[number].append(given.prompt / seconds[0])
                beside[number].append(seconds[1])
    last = alone[[*llms][-1]]
    for number, llm in llms.items():
        ratio = statistics.median(rate / other for rate, other in zip(alone[number], last, strict=True))
        print(
            f"{number} tokens a step: {statistics.median(alone[number]):.0f} tokens/s ({ratio:.3f}), "
            f"longest step {statistics.median(beside[number]) * 1e3:.0f} ms"
        )
        llm.close()


if __name__ == "__main__":
    main()
