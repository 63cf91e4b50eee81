"""python -m bench.gpu: the engine on one CUDA device, as fractions of what the device can do.

First the device's own limits are measured (a large copy, a large matrix product), then each figure is put beside the
time that these limits allow: a decode can't be faster than reading its weights and states once, a prefill not faster
than its multiplications. Weights are random and made on the device. Needs torch, triton, numpy and the packages below
the web; with transformers installed, it is measured on the same shape too.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from bench.gpu_models import delta_9b, hybrid_8b, llama_7b, llama_8b, quantise_network, random_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.modelling.backends.backend import PRESENT
from inference.modelling.layers.linear import network_bytes
from inference.modelling.layers.moe import Experts
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.values.sampling_params import SamplingParams

GIB = 1 << 30
PROMPT, NEW, CLIENTS = 128, 128, 64
PREFILL = 4096


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of ``work`` on the device, after two warm-ups."""
    samples = []
    for number in range(repeats + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        if number >= 2:
            samples.append(start.elapsed_time(stop) / 1000)
    return statistics.median(samples)


def measure_bandwidth() -> float:
    """Bytes per second of a copy within the device's memory, read and written counted."""
    source = torch.randint(0, 255, (2 * GIB,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), 10)


def measure_matmul() -> float:
    """Operations per second of a bfloat16 product of random 8192 × 8192 matrices."""
    size = 8192
    first, second = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * size**3 / timed(lambda: first @ second, 10)


def step_bytes(network: HybridForCausalLM, spec: ModelSpec, batch: int, context: int) -> int:
    """Fewest bytes that a decode moves: weights once, states read and written.

    Of an embedding that is not the head too that is one row each, of routed experts as many as one row has.
    """
    weights = network_bytes(network)
    if not spec.tie_word_embeddings:
        table = network_bytes(network.embed_tokens)
        weights -= table - batch * (table // spec.vocab_size)
    for module in network.modules():
        if isinstance(module, Experts):
            stacks = network_bytes(module)
            weights -= stacks - stacks * module.spec.top_k // module.spec.num_experts
    paged = spec.state_bytes_per_token() * (context + 1)
    return weights + batch * (paged + 2 * spec.state_bytes_per_sequence())


def prefill_operations(spec: ModelSpec, tokens: int) -> float:
    """Operations of a prompt: its products and causal attention, the head for the last token alone."""
    matrices = sum(
        math.prod(shape)
        for name, shape in spec.parameter_shapes().items()
        if len(shape) == 2 and name.startswith("layers.")
    )
    attention = sum(
        2 * layer.token_mixer.num_heads * layer.token_mixer.head_dim * tokens**2
        for layer in spec.layers
        if isinstance(layer.token_mixer, AttentionSpec)
    )
    return 2.0 * matrices * tokens + attention


def make_engine(network: HybridForCausalLM, spec: ModelSpec, device: str, batch: int, length: int) -> Engine:
    """An engine with room for ``batch`` sequences of ``length`` tokens, a prompt in one chunk."""
    return Engine(
        network,
        spec,
        EngineConfig(
            max_model_len=length,
            num_blocks=1 + batch * -(-length // 16),
            num_state_slots=1 + batch,
            max_num_seqs=batch,
            max_num_batched_tokens=max(length, batch),
            device=device,
            dtype=spec.dtype,
        ),
    )


def add_requests(engine: Engine, count: int, prompt: int, new: int, vocab: int) -> None:
    """Greedy requests of random prompts that end at their length."""
    for number in range(count):
        tokens = torch.randint(0, vocab, (prompt,)).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        engine.add_request(EngineRequest(f"r{number}", tokens, params))


def run_steps(engine: Engine) -> tuple[list[float], int]:
    """Run to the end: seconds of each step (it ends with the sampled tokens on the host), and tokens generated."""
    seconds, tokens = [], 0
    while engine.has_unfinished():
        started = time.perf_counter()
        outputs = engine.step()
        seconds.append(time.perf_counter() - started)
        for output in outputs:
            if output.error is not None:
                raise SystemExit(f"request {output.request_id} failed: {output.error}")
            tokens += len(output.new_token_ids)
    return seconds, tokens


def measure_decode(network: HybridForCausalLM, spec: ModelSpec, device: str = "cuda", new: int = NEW) -> float:
    """Median seconds of a decode step at batch 1."""
    engine = make_engine(network, spec, device, 1, PROMPT + new)
    for _ in range(2):  # the first run warms up
        add_requests(engine, 1, PROMPT, new, spec.vocab_size)
        seconds, _ = run_steps(engine)
    return statistics.median(seconds[1:])


def measure_prefill(network: HybridForCausalLM, spec: ModelSpec) -> float:
    """Median seconds of a step that computes one prompt of ``PREFILL`` tokens."""
    engine = make_engine(network, spec, "cuda", 1, PREFILL + 1)
    samples = []
    for _ in range(6):
        add_requests(engine, 1, PREFILL, 1, spec.vocab_size)
        samples.append(run_steps(engine)[0][0])
    return statistics.median(samples[2:])


def measure_clients(network: HybridForCausalLM, spec: ModelSpec) -> float:
    """Tokens per second of ``CLIENTS`` requests together, prompts included."""
    engine = make_engine(network, spec, "cuda", CLIENTS, PROMPT + NEW)
    for _ in range(2):
        add_requests(engine, CLIENTS, PROMPT, NEW, spec.vocab_size)
        seconds, tokens = run_steps(engine)
    return tokens / sum(seconds)


def measure_transformers(spec: ModelSpec) -> float:
    """Seconds per token of transformers with a compiled static cache at batch 1, on the same llama shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    mixer = spec.layers[0].token_mixer
    channel = spec.layers[0].channel_mixer
    assert isinstance(mixer, AttentionSpec) and channel is not None
    config = LlamaConfig(
        hidden_size=spec.hidden_size,
        num_hidden_layers=len(spec.layers),
        num_attention_heads=mixer.num_heads,
        num_key_value_heads=mixer.num_kv_heads,
        intermediate_size=channel.intermediate_size,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, torch_dtype=torch.bfloat16).eval()
    model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    prompt = torch.randint(0, spec.vocab_size, (1, PROMPT), device="cuda")

    def generate(new: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        model.generate(
            prompt, min_new_tokens=new, max_new_tokens=new, do_sample=False, cache_implementation="static",
            attention_mask=torch.ones_like(prompt), pad_token_id=0,
        )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - started

    for new in (NEW, NEW, 1):
        generate(new)
    # The difference leaves the prefill out, as ours does.
    return (statistics.median(generate(NEW) for _ in range(3)) - generate(1)) / (NEW - 1)


class Report:
    """Prints each figure with its fraction and target as it comes, and keeps them."""

    def __init__(self) -> None:
        self.figures: list[dict[str, object]] = []

    def add(self, what: str, value: str, ratio: float | None = None, target: float | None = None) -> None:
        verdict = ""
        if ratio is not None and target is not None:
            verdict = f"  {ratio:.2f} (target {target:g}: {'met' if ratio >= target else 'missed'})"
        print(f"{what:44} {value:>18}{verdict}", flush=True)
        self.figures.append({"what": what, "value": value, "ratio": ratio, "target": target})


def free() -> None:
    """Give the memory of a measured network back before the next is made."""
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench.gpu measures a CUDA device, and torch sees none here.")
    if not PRESENT:
        raise SystemExit("bench.gpu needs triton, which is not installed; it comes with torch's builds for CUDA.")
    torch.manual_seed(20)
    report = Report()
    bandwidth, peak = measure_bandwidth(), measure_matmul()
    report.add(torch.cuda.get_device_name(), f"{bandwidth / 1e9:.0f} GB/s")
    report.add("bfloat16 products", f"{peak / 1e12:.0f} Tflop/s")
    free()

    def decode(what: str, spec: ModelSpec, network: HybridForCausalLM, target: float) -> float:
        seconds = measure_decode(network, spec)
        bound = step_bytes(network, spec, 1, PROMPT + NEW // 2) / bandwidth
        report.add(f"{what}, decode at batch 1", f"{1 / seconds:.1f} tokens/s", bound / seconds, target)
        return seconds

    def prefill(what: str, spec: ModelSpec, network: HybridForCausalLM) -> None:
        seconds = measure_prefill(network, spec)
        bound = prefill_operations(spec, PREFILL) / peak
        report.add(f"{what}, prefill {PREFILL}", f"{PREFILL / seconds:.0f} tokens/s", bound / seconds, 0.5)

    spec = llama_8b()
    network = random_network(spec, "cuda", torch.bfloat16)
    alone = decode("llama 8B bf16", spec, network, 0.85)
    prefill("llama 8B bf16", spec, network)
    together = measure_clients(network, spec)
    report.add(f"llama 8B bf16, {CLIENTS} requests together", f"{together:.0f} tokens/s")
    del network
    free()
    if find_spec("transformers") is None:
        report.add("transformers", "not installed")
    else:
        theirs = measure_transformers(spec)
        report.add("transformers, compiled, static cache", f"{1 / theirs:.1f} tokens/s", theirs / alone, 2.0)
        # It serves one request after the other, so that is also what 64 clients get from it together.
        report.add(f"{CLIENTS} requests / transformers", "", together * theirs, 10.0)
        torch.compiler.reset()
        free()
    spec = llama_7b()
    for quant in ("int4", "int8"):
        network = quantise_network(random_network(spec, "cuda", torch.bfloat16), quant)
        decode(f"llama 7B {quant}", spec, network, 0.6)
        del network
        free()
    for what, spec in (("hybrid 8B bf16", hybrid_8b()), ("delta rule 9B bf16", delta_9b())):
        network = random_network(spec, "cuda", torch.bfloat16)
        decode(what, spec, network, 0.8)
        prefill(what, spec, network)
        del network
        free()
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
