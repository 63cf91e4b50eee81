"""Whole networks through the engine: the device path generates what the reference generates."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_models import NORM, random_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.modelling.backends import backend as kernels
from inference.modelling.backends.triton.cuda_graphs import DecodeGraphs, DecodeInputs, StaticBatch, padded_sizes
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import (
    AttentionSpec,
    LayerSpec,
    Mamba1Spec,
    Mamba2Spec,
    MLASpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
)
from inference.values.sampling_params import SamplingParams

HIDDEN, VOCAB = 32, 61
MAX_TOKENS = 3 if kernels.INTERPRETED else 4  # the interpreter takes seconds for a step
ROPE = RopeSpec(10000.0, 8)
MIXERS = {
    "attention": AttentionSpec(4, 2, 8, 0.35, ROPE, qkv_bias=True),
    "normed": AttentionSpec(4, 2, 8, 0.35, ROPE, qk_norm=NORM, sliding_window=9, softcap=20.0),
    "wide_norm": AttentionSpec(4, 2, 8, 0.35, qk_norm=NormSpec("layer"), qk_norm_per_head=False),
    "mla": MLASpec(4, 16, 12, 8, 8, 8, 0.25, RopeSpec(10000.0, 8, interleaved=True), False, NORM, NORM),
    "mamba1": Mamba1Spec(16, 8, 3, 4),
    "mamba2": Mamba2Spec(32, 4, 8, 16, 2, 4, 16, NORM),
}
MLP, MOE = MLPSpec(48), MoESpec(6, 2, 24, shared_intermediate_size=16)
STACKS = {
    "llama": [("attention", MLP), ("attention", MLP)],
    "gemma": [("normed", MLPSpec(48, "gelu_tanh")), ("wide_norm", MLP)],
    "deepseek": [("mla", MLP), ("mla", MOE)],
    "nemotron": [("mamba2", MLPSpec(48, "relu2", gated=False)), ("attention", None), ("mamba2", MOE)],
    "jamba": [("mamba1", MLP), ("attention", MOE)],
}


def make_spec(name: str) -> ModelSpec:
    layers = tuple(LayerSpec(MIXERS[mixer], NORM, None, channel, channel and NORM) for mixer, channel in STACKS[name])
    return ModelSpec("huggingface", name, HIDDEN, VOCAB, 128, layers, NORM)


def config(device: torch.device | str) -> EngineConfig:
    """Prompts come in chunks of up to 12 tokens, beside the decodes of others."""
    return EngineConfig(
        64,
        num_blocks=24,
        num_state_slots=5,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=12,
        device=str(device),
    )


def generate(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, the requests one step after the other, so that decodes and chunks share steps."""
    tokens: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
        engine.add_request(EngineRequest(f"r{number}", prompt, params))
        tokens[f"r{number}"] = []
        for output in engine.step():
            tokens[output.request_id] += output.new_token_ids
    while engine.has_unfinished():
        for output in engine.step():
            assert output.error is None
            tokens[output.request_id] += output.new_token_ids
    return list(tokens.values())


@pytest.mark.parametrize("name", STACKS)
def test_tokens_are_those_of_the_reference(name, device, monkeypatch):
    spec = make_spec(name)
    prompts = [torch.randint(0, VOCAB, (length,)).tolist() for length in (3, 18, 9)]
    found = generate(Engine(random_network(spec, device, torch.float32, 3).to(device), spec, config(device)), prompts)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    network = random_network(spec, device, torch.float32, 3).cpu()
    assert found == generate(Engine(network, spec, config("cpu")), prompts)


def test_padded_sizes():
    assert padded_sizes(1) == (1,)
    assert padded_sizes(6) == (1, 2, 4, 6)
    assert padded_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert padded_sizes(130)[-3:] == (96, 128, 130)


@pytest.mark.parametrize("name", ["llama", "deepseek", "nemotron", "jamba"])
def test_padding_rows_change_nothing(name, device, monkeypatch):
    spec = make_spec(name)
    assert_padding_changes_nothing(random_network(spec, device, torch.float32, 3), spec, device, monkeypatch)


def assert_padding_changes_nothing(
    network: HybridForCausalLM, spec: ModelSpec, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph captures, run eagerly over padded buffers: same tokens, scratch still zero."""
    prompts = [torch.randint(0, VOCAB, (length,)).tolist() for length in (5, 9)]
    wanted = generate(Engine(network, spec, config(device)), prompts)
    engine = Engine(network, spec, config(device))
    runner = engine._runner
    static = StaticBatch(4, 4 * 16, 4, device)
    graphs = DecodeGraphs(network, spec, runner._layers, static, max_rows=4)

    class Padded:
        """``DecodeGraphs.run`` without a graph."""

        def run(self, inputs: DecodeInputs) -> torch.Tensor:
            static.load(inputs)
            return graphs.run_padded(4)[: len(inputs.token_ids)]

    monkeypatch.setattr(runner, "_graphs", Padded())
    assert generate(engine, prompts) == wanted
    for tensors in runner._layers:
        for state, tensor in tensors.items():
            scratch = tensor[: 4 if state in ("k", "v", "latent") else 1]
            assert not scratch.any(), state


@pytest.mark.device_only
@pytest.mark.parametrize("name", STACKS)
def test_replayed_decodes_are_the_eager_ones(name, device, monkeypatch):
    spec = make_spec(name)
    prompts = [torch.randint(0, VOCAB, (length,)).tolist() for length in (5, 11, 2, 30)]
    network = random_network(spec, device, torch.float32, 3)
    engine, eager = (Engine(network, spec, config(device)) for _ in range(2))
    assert engine._runner._graphs is not None
    monkeypatch.setattr(eager._runner, "_graphs", None)
    assert generate(engine, prompts) == generate(eager, prompts)
