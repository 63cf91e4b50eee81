"""What a recurrent layer's native kernel gives its model: ``python -m bench.recurrent_models [--models NAME,NAME]``.

Random weights in published shapes, bfloat16, loaded twice: with the native forms of all layers, and with the PyTorch
forms of those in ``FORMS``. Both decode and prefill in turns. Each line: medians in milliseconds, without the kernels
and with them, and their ratio (lowest to highest of a turn).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from bench.child import random_prompts
from bench.profile_step import add_requests, finish, load
from bench.weights import make_checkpoint
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends import backend
from inference.modelling.backends.native import library
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import ChannelMix, TimeMix

FORMS = {"rwkv-4-169m": (TimeMix, ChannelMix), "recurrentgemma-2b-3-layers": (RGLRU,), "xlstm-7b-1-layer": (MLSTM,)}
"""The layer types whose kernels are measured, by checkpoint."""
Clock = Callable[[], float]
PREFILL = 512
WARM_UP_STEPS = 8


@contextmanager
def without(types: tuple[type, ...]) -> Iterator[None]:
    """Load networks whose layers of these types have no native form."""
    left = {kind: methods for kind, methods in backend.NATIVE_FORMS.items() if kind not in types}
    with mock.patch.object(backend, "NATIVE_FORMS", left):
        yield


def decode_ms(llm: LLM, batch: int, steps: int, clock: Clock) -> float:
    """Median time of a step of ``batch`` sequences."""
    add_requests(llm, random_prompts(batch, 16, llm._running_engine()._vocab_size), WARM_UP_STEPS + steps)
    times = []
    while llm.has_unfinished():
        started = clock()
        llm.step()
        times.append((clock() - started) * 1e3)
    return statistics.median(times[WARM_UP_STEPS:])


def prefill_ms(llm: LLM, seed: int, clock: Clock) -> float:
    """Time to the first token of a prompt that no cache knows."""
    add_requests(llm, random_prompts(1, PREFILL, llm._running_engine()._vocab_size, seed=seed), 1)
    started = clock()
    finish(llm)
    return (clock() - started) * 1e3


def measure(name: str, directory: Path, given: argparse.Namespace) -> None:
    checkpoint = make_checkpoint(name, directory)
    options = LLMOptions(dtype="bfloat16", max_model_len=2048, cache_bytes=1 << 30)
    with without(FORMS[name]):
        plain = load(checkpoint, options)
    native = load(checkpoint, options)
    clock: Clock = time.process_time if given.processor_time else time.perf_counter
    tasks = {
        "decode 1": lambda llm, number: decode_ms(llm, 1, given.steps, clock),
        "decode 8": lambda llm, number: decode_ms(llm, 8, given.steps, clock),
        f"prefill {PREFILL}": lambda llm, number: prefill_ms(llm, number + 1, clock),
    }
    for task, run in tasks.items():
        found = [[run(llm, number) for llm in (plain, native)] for number in range(given.rounds + 1)][1:]
        before, after = (statistics.median(values) for values in zip(*found, strict=True))
        ratios = sorted(one / other for one, other in found)
        span = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:28} {task:12} {before:9.2f} {after:9.2f} {before / after:6.2f}× {span}", flush=True)
    plain.close()
    native.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(FORMS), help="with commas (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns after the first, which isn't counted")
    parser.add_argument("--steps", type=int, default=24, help="decode steps of a turn")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    parser.add_argument("--processor-time", action="store_true", help="of all threads, where other work disturbs")
    given = parser.parse_args()
    if not library.is_available():
        raise SystemExit("no native kernels here: python -m inference.modelling.backends.native.build")
    for name in given.models.split(","):
        if name not in FORMS:
            raise SystemExit(f"--models: {name!r} is none of {', '.join(FORMS)}")
        measure(name, given.cache / "checkpoints", given)


if __name__ == "__main__":
    main()
