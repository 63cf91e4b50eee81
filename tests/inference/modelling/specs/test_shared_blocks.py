"""Specs of shared blocks: a block's parameters are there once, a layer's own in each layer."""

from __future__ import annotations

import torch

from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.shared_blocks import SharedBlockSpec

NORM = NormSpec()
MAMBA = Mamba2Spec(32, 4, 8, 8, 1, 4, 32, NORM)


def layer(block: int) -> LayerSpec:
    shared = SharedBlockSpec(block, AttentionSpec(4, 4, 8, 1.0), MLPSpec(24), NORM, 3, 5)
    return LayerSpec(token_mixer=MAMBA, token_norm=NORM, prologue=shared)


def test_layers_of_one_block_have_one_module():
    layers = (layer(0), layer(1), layer(0), LayerSpec(token_mixer=MAMBA, token_norm=NORM))
    spec = ModelSpec("huggingface", "zamba2", 16, 40, 64, layers, NORM)
    with torch.device("meta"):
        network = HybridForCausalLM(spec)
    first, second, third, _ = network.layers
    assert first.prologue.block is third.prologue.block is not second.prologue.block
    assert first.prologue.out_proj is not third.prologue.out_proj
    found = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert found == spec.parameter_shapes()
    block = [name for name in found if "prologue.block." in name]
    assert {name.split(".")[1] for name in block} == {"0", "1"}
    assert spec.num_parameters() == sum(parameter.numel() for parameter in network.parameters())
