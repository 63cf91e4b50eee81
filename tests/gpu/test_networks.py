"""Whole networks through the engine: the device path generates what the reference generates."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_models import NORM, random_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.modelling.backends import backend as kernels
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from inference.modelling.specs.zaya import ConvolvedAttentionSpec
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
    "delta": GatedDeltaSpec(2, 4, 8, 6, 4, NORM),
    "delta_sigmoid": GatedDeltaSpec(2, 4, 8, 6, 4, NORM, gate_activation="sigmoid"),
    "convolved": ConvolvedAttentionSpec(4, 2, 8, 0.35, ROPE, channel_kernel=3, head_kernel=2),
    "kimi": KimiDeltaSpec(2, 8, 4, NORM, 6, None),
    "conv": ShortConvSpec(32, 3, bias=True),
    "time_mix": TimeMixSpec(32, 48),
    "channel_mix": ChannelMixSpec(32, 48),
    "rg_lru": RGLRUSpec(48, 2, 4),
    "lightning": LightningSpec(4, 8, 0.7, NORM),
    "mlstm": MLSTMSpec(2, 8, 16, 15.0, 1e-6, 1e-6),
}
MLP, MOE = MLPSpec(48), MoESpec(6, 2, 24, shared_intermediate_size=16)
STACKS = {
    "llama": [("attention", MLP), ("attention", MLP)],
    "gemma": [("normed", MLPSpec(48, "gelu_tanh")), ("wide_norm", MLP)],
    "deepseek": [("mla", MLP), ("mla", MOE)],
    "nemotron": [("mamba2", MLPSpec(48, "relu2", gated=False)), ("attention", None), ("mamba2", MOE)],
    "jamba": [("mamba1", MLP), ("attention", MOE)],
    "delta": [("delta", MLP), ("kimi", MLP), ("conv", MLP), ("attention", MLP)],
    "convolved": [("delta_sigmoid", MLP), ("convolved", MLP)],
    "rwkv": [("time_mix", None), ("channel_mix", None)] * 2,
    "griffin": [("rg_lru", MLP), ("attention", MLP), ("rg_lru", MLP)],
    "xlstm": [("mlstm", MLP), ("lightning", MLP)],
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
