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
from dataclasses import dataclass
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
from inference.modelling.quantisation import Quant
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.values.sampling_params import SamplingParams

GIB = 1 << 30
PROMPT, NEW, CLIENTS = 128, 128, 64
PREFILL = 4096
PRINTED_KERNELS = 14


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the table.

    Attributes:
        title: Its name in the report.
        spec: Makes its shape.
        decode_target: Wanted fraction of the device's bandwidth in a decode.
        quant: What its matrices become.
        prefills: Measure a prefill too.
        has_peer: Measure transformers and ``CLIENTS`` requests too.
    """

    title: str
    spec: Callable[[], ModelSpec]
    decode_target: float
    quant: Quant | None = None
    prefills: bool = True
    has_peer: bool = False


MODELS = {
    "llama": Model("llama 8B bf16", llama_8b, 0.85, has_peer=True),
    "int4": Model("llama 7B int4", llama_7b, 0.6, quant="int4"),
    "int8": Model("llama 7B int8", llama_7b, 0.6, quant="int8"),
    "hybrid": Model("hybrid 8B bf16", hybrid_8b, 0.8),
    "delta": Model("delta rule 9B bf16", delta_9b, 0.8),
}


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


def profile_steps(network: HybridForCausalLM, spec: ModelSpec, prompt: int, new: int) -> list[tuple[str, float, int]]:
    """Kernels of one request's steps: name, seconds and calls, the one that takes most first. Compiled before."""
    engine = make_engine(network, spec, "cuda", 1, prompt + new)
    add_requests(engine, 1, prompt, new, spec.vocab_size)
    run_steps(engine)
    add_requests(engine, 1, prompt, new, spec.vocab_size)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run_steps(engine)
    kernels = [(event.key, event.self_device_time_total / 1e6, event.count) for event in profiler.key_averages()]
    return sorted(kernels, key=lambda kernel: -kernel[1])


def print_kernels(what: str, kernels: list[tuple[str, float, int]]) -> None:
    """A table of the kernels that take most of the device's time."""
    total = sum(seconds for _, seconds, _ in kernels)
    print(f"  {what}: {total * 1000:.2f} ms in {sum(calls for *_, calls in kernels)} calls")
    for name, seconds, calls in kernels[:PRINTED_KERNELS]:
        each = seconds / calls * 1e6
        print(f"  {seconds * 1000:9.3f} ms {seconds / total:6.1%} {calls:6} calls of {each:8.1f} us  {name[:70]}")


class Benchmark:
    """The models of the table, one after the other, each made and freed.

    Args:
        report: Where the figures go.
        bandwidth: Bytes per second of the device's memory.
        peak: Operations per second of its products.
        new: Tokens generated in each decode.
        is_profiled: Print the kernels of each prefill and decode as well.
    """

    def __init__(self, report: Report, bandwidth: float, peak: float, new: int, *, is_profiled: bool) -> None:
        self._report = report
        self._bandwidth, self._peak = bandwidth, peak
        self._new = new
        self._is_profiled = is_profiled

    def run(self, name: str) -> None:
        """Measure one of ``MODELS``."""
        model = MODELS[name]
        spec = model.spec()
        network = random_network(spec, "cuda", torch.bfloat16)
        if model.quant is not None:
            network = quantise_network(network, model.quant)
        alone = self._decode(model, spec, network)
        if model.prefills:
            self._prefill(model, spec, network)
        if self._is_profiled:
            if model.prefills:
                print_kernels(f"prefill {PREFILL}", profile_steps(network, spec, PREFILL, 1))
            print_kernels(f"prompt of {PROMPT}, 8 decodes", profile_steps(network, spec, PROMPT, 9))
        together = measure_clients(network, spec) if model.has_peer else 0.0
        del network
        free()
        if model.has_peer:
            self._peer(model, spec, alone, together)

    def _decode(self, model: Model, spec: ModelSpec, network: HybridForCausalLM) -> float:
        seconds = measure_decode(network, spec, new=self._new)
        bound = step_bytes(network, spec, 1, PROMPT + self._new // 2) / self._bandwidth
        what = f"{model.title}, decode at batch 1"
        self._report.add(what, f"{1 / seconds:.1f} tokens/s", bound / seconds, model.decode_target)
        return seconds

    def _prefill(self, model: Model, spec: ModelSpec, network: HybridForCausalLM) -> None:
        seconds = measure_prefill(network, spec)
        bound = prefill_operations(spec, PREFILL) / self._peak
        self._report.add(f"{model.title}, prefill {PREFILL}", f"{PREFILL / seconds:.0f} tokens/s", bound / seconds, 0.5)

    def _peer(self, model: Model, spec: ModelSpec, alone: float, together: float) -> None:
        self._report.add(f"{model.title}, {CLIENTS} requests together", f"{together:.0f} tokens/s")
        if find_spec("transformers") is None:
            self._report.add("transformers", "not installed")
            return
        theirs = measure_transformers(spec)
        self._report.add("transformers, compiled, static cache", f"{1 / theirs:.1f} tokens/s", theirs / alone, 2.0)
        # It serves one request after the other, so that is also what 64 clients get from it together.
        self._report.add(f"{CLIENTS} requests / transformers", "", together * theirs, 10.0)
        torch.compiler.reset()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="these models (all)")
    parser.add_argument("--new", type=int, default=NEW, help=f"tokens generated in each decode ({NEW})")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take most of the time")
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
    benchmark = Benchmark(report, bandwidth, peak, arguments.new, is_profiled=arguments.profile)
    for name in arguments.only:
        benchmark.run(name)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
