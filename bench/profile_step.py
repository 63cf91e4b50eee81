"""Where a step's time goes: ``python -m bench.profile_step DIRECTORY [--batch 1] [--context 128] [--prefill N]``.

Prints the wall time of a step, what of it is outside the forward pass, and the operators by their own time.
The operators are timed by torch's profiler, which slows small ones down: read their shares, not their sums.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from bench.child import random_prompts
from bench.step_clock import StepClock
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint


def load(directory: Path, options: LLMOptions) -> LLM:
    inspection = inspect_checkpoint(directory)
    files = [inspection.directory / name for name in inspection.weight_files]
    return LLM.load(inspection.spec, inspection.tokenizer, files, options)


def add_requests(llm: LLM, prompts: list[list[int]], max_tokens: int, first: int = 0) -> None:
    """Hand greedy requests that don't end early to the engine, numbered from ``first`` on."""
    for number, prompt in enumerate(prompts, first):
        llm.add(
            llm.prepare(
                {
                    "request_id": f"profile-{number}",
                    "web_id": "bench",
                    "attempt": 0,
                    "model": "bench",
                    "prompt": {"token_ids": prompt},
                    "params": SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True).to_dict(),
                    "priority": 0,
                    "deadline": time.time() + 600,
                }
            )
        )


def finish(llm: LLM) -> None:
    """Step until all requests have ended."""
    while llm.has_unfinished():
        llm.step()


def time_steps(llm: LLM, count: int) -> tuple[float, float]:
    """Median milliseconds of a whole step, and of what of it is outside the network's layers and head."""
    clock = StepClock(llm)
    whole, outside = [], []
    for _ in range(count):
        clock.reset()
        llm.step()
        whole.append(clock.steps_s)
        outside.append(clock.steps_s - clock.network_s)
    return statistics.median(whole) * 1e3, statistics.median(outside) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=0, help="profile a prefill of so many tokens instead")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default=None)
    parser.add_argument("--state-dtype", default="auto", help="of recurrent states: float32 or bfloat16")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=18)
    parser.add_argument("--eager", action="store_true", help="don't replay recorded steps")
    given = parser.parse_args()
    extra = {} if given.quant is None else {"quant": given.quant}
    extra |= {"dtype": given.dtype, "state_dtype": given.state_dtype}
    llm = load(given.directory, LLMOptions(max_model_len=8192, cache_bytes=2 << 30, **extra))
    if given.eager:
        llm._running_engine()._runner._programs = None
    vocab_size = llm._running_engine()._vocab_size
    if given.prefill:
        add_requests(llm, random_prompts(1, 16, vocab_size), 1)
        finish(llm)
        started = time.perf_counter()
        add_requests(llm, random_prompts(1, given.prefill, vocab_size, seed=1), 1)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            finish(llm)
        print(f"prefill of {given.prefill}: {(time.perf_counter() - started) * 1e3:.1f} ms, profiled")
    else:
        add_requests(llm, random_prompts(given.batch, given.context, vocab_size), 2 * given.steps + 200)
        while llm.stats()["num_generated_tokens"] < 8 * given.batch:
            llm.step()
        whole, outside = time_steps(llm, given.steps)
        print(f"step of {given.batch}: {whole:.2f} ms, {outside:.2f} ms of it outside the network's layers")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(given.steps // 2):
                llm.step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=given.rows, max_name_column_width=50))
    llm.close()


if __name__ == "__main__":
    main()
