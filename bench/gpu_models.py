"""Specs and random weights for the device: shapes of known sizes, made in place without files.

Needs torch and the packages below the web only.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from inference.modelling.backends.backend import choose_backend
from inference.modelling.layers.packed import Packable
from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import Quant, quantised_kinds
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec
from inference.modelling.specs.linear import GatedDeltaSpec
from inference.modelling.specs.parts import Dtype, NormSpec, RopeSpec

NORM = NormSpec("rms", 1e-5)


def llama_spec(
    hidden: int, layers: int, heads: int, kv_heads: int, width: int, vocab: int, *, dtype: Dtype = "bfloat16"
) -> ModelSpec:
    """A llama: attention and a gated MLP in every layer, an untied head."""
    head_dim = hidden // heads
    mixer = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, RopeSpec(500_000.0, head_dim))
    layer = LayerSpec(mixer, NORM, None, MLPSpec(width), NORM)
    return ModelSpec("huggingface", "llama", hidden, vocab, 8192, (layer,) * layers, NORM, dtype)


def llama_8b() -> ModelSpec:
    """The shape of Llama-3.1-8B. Source: https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json."""
    return llama_spec(4096, 32, 32, 8, 14336, 128_256)


def llama_7b() -> ModelSpec:
    """The shape of Llama-2-7B. Source: https://huggingface.co/meta-llama/Llama-2-7b-hf/blob/main/config.json."""
    return llama_spec(4096, 32, 32, 32, 11008, 32_000)


def hybrid_8b() -> ModelSpec:
    """The shape of Nemotron-H-8B: single mixers, 24 Mamba-2, 24 MLP, 4 attention.

    Source: https://huggingface.co/nvidia/Nemotron-H-8B-Base-8K/blob/main/config.json; the order of its layers is
    evened out here, which changes no byte of what a step reads.
    """
    mamba = Mamba2Spec(8192, 128, 64, 128, 8, 4, 1024, NORM)
    attention = AttentionSpec(32, 8, 128, 128**-0.5)
    mlp = MLPSpec(21504, "relu2", gated=False)
    block = [LayerSpec(mamba, NORM), LayerSpec(channel_mixer=mlp, channel_norm=NORM)] * 6
    layers = (*block, LayerSpec(attention, NORM)) * 4
    return ModelSpec("huggingface", "nemotron_h", 4096, 131_072, 8192, layers, NORM, "bfloat16")


def delta_9b() -> ModelSpec:
    """The shape of Qwen3.5-9B, its text model: 24 layers of the gated delta rule, 8 of gated attention.

    Source: https://huggingface.co/Qwen/Qwen3.5-9B/blob/main/config.json.
    """
    delta = GatedDeltaSpec(16, 32, 128, 128, 4, NORM)
    rope = RopeSpec(10_000_000.0, 64)
    attention = AttentionSpec(16, 4, 256, 256**-0.5, rope, qk_norm=NORM, output_gate=True)
    block = [LayerSpec(mixer, NORM, None, MLPSpec(12288), NORM) for mixer in (delta, delta, delta, attention)]
    return ModelSpec("huggingface", "qwen3_5_text", 4096, 248_320, 8192, tuple(block) * 8, NORM, "bfloat16")


@torch.no_grad()  # parameters of inference_mode couldn't move to another device
def random_network(
    spec: ModelSpec, device: torch.device | str, dtype: torch.dtype, seed: int = 20
) -> HybridForCausalLM:
    """A network of random weights that keeps activations near 1, made where it stays."""
    generator = torch.Generator(device).manual_seed(seed)
    network = empty_network(spec, device, dtype)
    for name, parameter in network.named_parameters():
        if parameter.is_floating_point():
            _fill(parameter, name, generator)
    return network


def empty_network(spec: ModelSpec, device: torch.device | str, dtype: torch.dtype) -> HybridForCausalLM:
    """A network whose parameters have their shapes and dtypes, and whatever the memory held; integers are 1."""
    with torch.device("meta"):
        network = HybridForCausalLM(spec)
    for owner in network.modules():
        kept = getattr(owner, "float32_parameters", ())
        for name, parameter in list(owner.named_parameters(recurse=False)):
            value = torch.empty(parameter.shape, dtype=torch.float32 if name in kept else dtype, device=device)
            if not parameter.is_floating_point():
                value = torch.ones(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(owner, name, nn.Parameter(value, requires_grad=False))
    return network.eval()


@torch.inference_mode()
def quantise_network(network: HybridForCausalLM, quant: Quant) -> HybridForCausalLM:
    """Quantise in place what the loader quantises, one matrix after the other, so that one is there twice at most."""
    kinds = quantised_kinds(network.spec, quant)
    for path, owner in network.named_modules():
        for leaf, parameter in list(owner.named_parameters(recurse=False)):
            kind = kinds.get(f"{path}.{leaf}")
            if kind is not None:
                backend = choose_backend(parameter.device, parameter.dtype)
                packed = backend.quantise(parameter.detach(), kind)
                cast("Packable", owner).accept(leaf, packed, parameter.dtype, parameter.device)
    return network


def _fill(value: torch.Tensor, name: str, generator: torch.Generator) -> None:
    leaf = name.rpartition(".")[2]
    if leaf == "A_log":
        value.uniform_(0.0, 2.0, generator=generator)  # decay rates from 1 to e²
    elif leaf == "dt_bias":
        value.uniform_(-6.0, -2.0, generator=generator)  # steps from 0.002 to 0.13
    elif value.dim() == 1:
        value.uniform_(0.5, 1.5, generator=generator)
    else:
        scale = 1.0 if "embed_tokens" in name else value.shape[-1] ** -0.5
        value.normal_(0.0, scale, generator=generator)
