"""Requests with LoRA adapters against the base alone, in turns: ``python -m bench.adapters --models llama-1b``.

Each round decodes ``--batch`` requests through the base, then as many through adapters that all differ, in one process
and on the same weights. Prints the medians of tokens per second and of their ratio: for the decoding alone, by the
clock and by processor time (which other work disturbs less; with ``--threads 1`` no thread spins in it), and with the
prompts. ``--many`` instead sends requests over more adapters than are resident and counts the wrong ones: those that
differ from what the same adapter gives alone. ``--xlora N`` sends the adapted requests through one X-LoRA of N
adapters.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench.__main__ import names
from bench.child import random_prompts
from bench.weights import CHECKPOINTS, make_checkpoint
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = {"attention": ATTENTION, "all": (*ATTENTION, "gate_proj", "up_proj", "down_proj")}
AMOUNT = 2.0
"""Size of the change: another adapter's tokens must differ."""


def write_adapter(base: Path, directory: Path, targets: Sequence[str], rank: int, seed: int) -> Path:
    """Write an adapter with random factors for the matrices of a checkpoint whose names end in ``targets``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                module = name.removesuffix(".weight")
                if module.rpartition(".")[2] not in targets:
                    continue
                outputs, inputs = file.get_slice(name).get_shape()
                prefix = f"base_model.model.{module}"
                a = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
                b = AMOUNT * torch.randn(outputs, rank, generator=generator) * rank**-0.5
                tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = a.bfloat16(), b.bfloat16()
    directory.mkdir(parents=True)
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets)}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def write_xlora(base: Path, directory: Path, targets: Sequence[str], rank: int, count: int) -> Path:
    """Write an X-LoRA of ``count`` adapters with a random classifier, which scales them alike in all matrices."""
    names = [str(number) for number in range(count)]
    for name in names:
        write_adapter(base, directory / name, targets, rank, int(name))
    hidden_size = json.loads((base / "config.json").read_text())["hidden_size"]
    save_file({"last.weight": torch.randn(count, hidden_size)}, str(directory / "xlora_classifier.safetensors"))
    (directory / "xlora_config.json").write_text(json.dumps({"hidden_size": hidden_size, "adapters": names}))
    return directory


def load(base: Path, options: LLMOptions, adapters: Mapping[str, Path]) -> LLM:
    inspection = inspect_checkpoint(base)
    files = [inspection.directory / name for name in inspection.weight_files]
    return LLM.load(inspection.spec, inspection.tokenizer, files, options, adapters=adapters)


def add(llm: LLM, request_id: str, prompt: Sequence[int], adapter: str | None, max_tokens: int) -> None:
    """Hand a greedy request that doesn't end early to the engine."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    message = {
        "request_id": request_id,
        "web_id": "bench",
        "attempt": 0,
        "model": "bench",
        "prompt": {"token_ids": list(prompt)},
        "params": params.to_dict(),
        "priority": 0,
        "deadline": time.time() + 3600,
    }
    llm.add(llm.prepare(message if adapter is None else message | {"adapter": adapter}))


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one turn: of decoding alone, by the clock and by processor time, and of all of it."""

    decode: float
    processor: float
    whole: float


def run_turn(llm: LLM, prompts: Sequence[Sequence[int]], adapters: Sequence[str | None], new: int) -> Rates:
    """Generate ``new`` tokens for each prompt."""
    started = time.perf_counter()
    for number, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True)):
        add(llm, str(number), prompt, adapter, new)
    before, decoding, computing, decoded = llm.stats()["num_generated_tokens"], 0.0, 0.0, 0
    while llm.has_unfinished():
        count, began, began_cpu = llm.stats()["num_generated_tokens"], time.perf_counter(), time.process_time()
        llm.step()
        made = llm.stats()["num_generated_tokens"] - count
        if made == len(prompts) and llm.step_tokens == made:
            decoding, decoded = decoding + time.perf_counter() - began, decoded + made
            computing += time.process_time() - began_cpu
    made = llm.stats()["num_generated_tokens"] - before
    return Rates(decoded / decoding, decoded / computing, made / (time.perf_counter() - started))


def compare(base: Path, given: argparse.Namespace, targets: str, work: Path) -> None:
    """Print the rates of the base and of adapters."""
    adapters = {
        f"a{number}": write_adapter(base, work / f"{targets}-{number}", TARGETS[targets], given.rank, number)
        for number in range(0 if given.xlora else given.batch)
    }
    chosen, what_runs = [*adapters], f"{given.batch} adapters"
    if given.xlora:
        adapters = {"x": write_xlora(base, work / f"{targets}-x", TARGETS[targets], given.rank, given.xlora)}
        chosen, what_runs = ["x"] * given.batch, f"an X-LoRA of {given.xlora} adapters"
    options = LLMOptions(
        dtype=given.dtype, quant=given.quant, max_model_len=2048, cache_bytes=1 << 29, max_adapters=given.batch,
        prefix_cache=False, num_threads=given.threads,
    )  # fmt: skip
    llm = load(base, options, adapters)
    vocab_size = llm._running_engine()._vocab_size
    found: dict[str, list[Rates]] = {"base": [], "adapters": []}
    for number in range(given.rounds + 1):
        prompts = random_prompts(given.batch, given.prompt, vocab_size, seed=number)
        base_rates = run_turn(llm, prompts, [None] * given.batch, given.new)
        adapted_rates = run_turn(llm, prompts, chosen, given.new)
        if number:  # the first round reads the adapters and records the steps
            found["base"].append(base_rates)
            found["adapters"].append(adapted_rates)
    llm.close()
    print(f"{base.name}, {given.dtype} {given.quant}, {what_runs} of rank {given.rank} on {targets}:")
    for what in ("decode", "processor", "whole"):
        rates = {name: [getattr(one, what) for one in turns] for name, turns in found.items()}
        ratios = [adapted / alone for adapted, alone in zip(rates["adapters"], rates["base"], strict=True)]
        base_rate, adapted_rate = (statistics.median(rates[name]) for name in ("base", "adapters"))
        print(
            f"  {what}: base {base_rate:.1f} tokens/s, adapters {adapted_rate:.1f}, ratio "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {given.rounds} rounds)"
        )


def send_many(base: Path, given: argparse.Namespace, work: Path) -> int:
    """Send requests over many adapters; return how many were answered by the wrong one."""
    adapters = {
        f"a{number}": write_adapter(base, work / f"many-{number}", TARGETS["all"], given.rank, number)
        for number in range(given.adapters)
    }
    options = LLMOptions(dtype=given.dtype, max_model_len=256, cache_bytes=1 << 27, max_adapters=given.resident)
    llm = load(base, options, adapters)
    (prompt,) = random_prompts(1, 24, llm._running_engine()._vocab_size)

    def outputs(chosen: Sequence[str]) -> list[tuple[int, ...]]:
        token_ids: dict[str, list[int]] = {str(number): [] for number in range(len(chosen))}
        for number, adapter in enumerate(chosen):
            add(llm, str(number), prompt, adapter, given.new)
        while llm.has_unfinished():
            for event in llm.step():
                token_ids[event["request_id"]] += event.get("token_ids", [])
        return [tuple(found) for found in token_ids.values()]

    alone = {name: outputs([name])[0] for name in adapters}
    draw = random.Random(7)
    chosen = [draw.choice([*adapters]) for _ in range(given.requests)]
    started = time.perf_counter()
    wrong = sum(found != alone[name] for name, found in zip(chosen, outputs(chosen), strict=True))
    seconds, stats = time.perf_counter() - started, llm.stats()["adapters"]
    llm.close()
    print(
        f"{base.name}: {given.requests} requests over {given.adapters} adapters, {given.resident} resident, "
        f"{len(set(alone.values()))} different answers: {wrong} by the wrong adapter, {stats['num_loads']} reads, "
        f"{seconds:.1f} s"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(CHECKPOINTS), default=["llama-1b"])
    parser.add_argument("--targets", type=names(TARGETS), default=["all", "attention"])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "blazr-bench")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="compute threads (default: the cores)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quant", default="none")
    parser.add_argument("--xlora", type=int, default=0, metavar="N", help="an X-LoRA of N adapters for all requests")
    parser.add_argument("--many", action="store_true", help="count wrong answers instead")
    parser.add_argument("--adapters", type=int, default=100)
    parser.add_argument("--resident", type=int, default=8)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    wrong = 0
    for name in given.models:
        base = make_checkpoint(name, given.directory)
        with tempfile.TemporaryDirectory() as work:
            if given.many:
                wrong += send_many(base, given, Path(work))
            else:
                for targets in given.targets:
                    compare(base, given, targets, Path(work))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
