"""python -m bench.prefix_cache: time to the first token of a prompt that is in the cache against one that isn't.

Per model, one engine: a cold prompt of 2,000 tokens, the same again, the same with another question of 20 tokens, and a
cold prompt with the cache off (what the cuts for snapshots cost). With ``--disk``, also the first one after a restart.
Median of rounds; each round has a prompt of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.child import random_prompts
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.request import EngineRequest
from inference.modelling.backends.backend import pack_weights
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.values.sampling_params import SamplingParams

PROMPT, QUESTION, VOCAB = 2000, 20, 49152


def llama_135m() -> ModelSpec:
    """30 layers of attention and MLP."""
    norm = NormSpec()
    layer = LayerSpec(
        AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125, rope=RopeSpec(10000.0, 64)),
        norm,
        channel_mixer=MLPSpec(1536),
        channel_norm=norm,
    )
    return ModelSpec("huggingface", "llama", 576, VOCAB, 4096, (layer,) * 30, norm, tie_word_embeddings=True)


def mamba2_130m() -> ModelSpec:
    """24 layers of Mamba-2."""
    norm = NormSpec()
    layer = LayerSpec(
        Mamba2Spec(
            intermediate_size=1536,
            num_heads=24,
            head_dim=64,
            state_size=128,
            num_groups=1,
            conv_kernel=4,
            norm_group_size=1536,
            gated_norm=norm,
        ),
        norm,
    )
    return ModelSpec("huggingface", "mamba2", 768, VOCAB, 4096, (layer,) * 24, norm, tie_word_embeddings=True)


def hybrid_150m() -> ModelSpec:
    """Mamba-2 with an MLP, every fourth layer attention."""
    mamba, llama = mamba2_130m().layers[0], llama_135m().layers[0]
    first = replace(mamba, channel_mixer=MLPSpec(1536), channel_norm=NormSpec())
    second = replace(llama, token_mixer=replace(llama.token_mixer, num_heads=12, num_kv_heads=4))
    return replace(mamba2_130m(), model_type="hybrid", layers=(first, first, first, second) * 5)


MODELS = {
    "llama-135m": llama_135m,
    "mamba2-130m": mamba2_130m,
    "hybrid-150m": hybrid_150m,
}


def random_network(spec: ModelSpec, dtype: torch.dtype) -> HybridForCausalLM:
    """Seeded weights, packed as a load would."""
    generator = torch.Generator().manual_seed(1)
    with torch.device("meta"):
        network = HybridForCausalLM(spec)
    network.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(generator=generator).mul_(parameter.shape[-1] ** -0.5)
            if dtype != torch.float32 and parameter.dim() == 2 and "conv" not in name:
                parameter.data = parameter.data.to(dtype)
    for module in network.modules():
        kept = getattr(module, "float32_parameters", frozenset())
        for name, parameter in module.named_parameters(recurse=False):
            if name not in kept:
                parameter.data = parameter.data.to(dtype)
    pack_weights(network)
    return network


def make_engine(network: HybridForCausalLM, spec: ModelSpec, dtype: str, **options: Any) -> Engine:
    """Room for two sequences and some cached ones."""
    disk = options.pop("disk", None)
    config = EngineConfig(
        max_model_len=4096,
        num_blocks=1024,
        num_state_slots=3,
        max_num_seqs=2,
        num_snapshot_slots=24 if spec.state_bytes_per_sequence() else 0,
        dtype=dtype,  # type: ignore[arg-type]
        **options,
    )
    return Engine(network, spec, config, disk=disk)


def first_token_s(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Seconds from adding a request to its first token, and how many tokens were found; it runs to its end."""
    params = SamplingParams(temperature=0.0, max_tokens=2, seed=0)
    started = time.perf_counter()
    engine.add_request(EngineRequest(f"r{started}", tuple(prompt), params))
    first, cached = 0.0, 0
    while engine.has_unfinished():
        for output in engine.step():
            if output.new_token_ids and not first:
                first, cached = time.perf_counter() - started, output.num_cached_tokens
    return first, cached


def measure(name: str, dtype: str, rounds: int, *, disk: bool) -> dict[str, tuple[float, int]]:
    """Median seconds, and tokens found, of each case."""
    spec = MODELS[name]()
    network = random_network(spec, {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype])
    found: dict[str, list[tuple[float, int]]] = {}

    def record(case: str, result: tuple[float, int]) -> None:
        found.setdefault(case, []).append(result)

    with tempfile.TemporaryDirectory() as directory:
        tier = (lambda: DiskTier(Path(directory), name, 1 << 34)) if disk else (lambda: None)
        engine, plain = (
            make_engine(network, spec, dtype, disk=tier()),
            make_engine(network, spec, dtype, prefix_cache=False),
        )
        prompts = random_prompts(rounds + 1, PROMPT + 2 * QUESTION, VOCAB)
        first_token_s(engine, prompts[-1][:600])  # warm-up
        for full in prompts[:rounds]:
            body, question, other = full[:PROMPT], full[PROMPT : PROMPT + QUESTION], full[PROMPT + QUESTION :]
            record("cache off", first_token_s(plain, body + question))
            record("cold", first_token_s(engine, body + question))
            engine.flush()  # what is being written would share the processor
            record("the same again", first_token_s(engine, body + question))
            engine.flush()
            record("another question", first_token_s(engine, body + other))
        if disk:
            for full in prompts[:rounds]:
                engine.close()
                engine = make_engine(network, spec, dtype, disk=tier())
                record("after a restart", first_token_s(engine, full[: PROMPT + QUESTION]))
        engine.close()
    return {
        case: (statistics.median(seconds for seconds, _ in results), min(cached for _, cached in results))
        for case, results in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", action="store_true", help="also measure the first request after a restart")
    arguments = parser.parse_args()
    table = Table(box=None)
    for heading in ("model", "prompt", "tokens found", "TTFT", "of cold"):
        table.add_column(heading, justify="left" if heading in ("model", "prompt") else "right")
    for name in arguments.models.split(","):
        results = measure(name, arguments.dtype, arguments.rounds, disk=arguments.disk)
        cold = results["cold"][0]
        for case, (seconds, cached) in results.items():
            table.add_row(name, case, f"{cached:,}", f"{seconds * 1000:.1f} ms", f"{seconds / cold:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
