"""Every oxidizr block, and mixed models, against the float64 reference: logits within 3e-4 in float32.

Full forward, prefill in chunks of 1, 7 and 64, decode, and mixed batches, through a checkpoint directory
in the trainer's naming and the registered family.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from inference.modelling.families.registry import family_builder
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.linear import Mamba3Spec
from inference.modelling.weights.loader import load_network
from tests.inference.modelling import reference_oxidizr as reference
from tests.inference.modelling.harness import assert_matches_oracle, load_directory, read_view
from tests.inference.modelling.reference_oxidizr import OxidizrConfig

TOLERANCE = 3e-4

CONFIGS = {
    "gqa": OxidizrConfig(("gqa", "gqa")),
    "mla-moe": OxidizrConfig(("mla", "mla")),
    "mla-moe-top1": OxidizrConfig(("mla",), experts=2, top_k=1),
    "mamba1": OxidizrConfig(("mamba1", "mamba1")),
    "mamba2": OxidizrConfig(("mamba2", "mamba2")),
    "mamba2-groups-kernel2": OxidizrConfig(("mamba2", "mamba2"), groups=2, conv_kernel=2, mamba_heads=4),
    "mamba3-siso": OxidizrConfig(("mamba3", "mamba3")),
    "mamba3-real": OxidizrConfig(("mamba3", "mamba3"), complex_rope=False),
    "mamba3-conv": OxidizrConfig(("mamba3", "mamba3"), use_conv=True, groups=4),
    "mamba3-conv-real": OxidizrConfig(("mamba3",), use_conv=True, complex_rope=False),
    "mamba3-mimo": OxidizrConfig(("mamba3", "mamba3"), mimo_rank=3),
    "mamba3-mimo-conv-groups": OxidizrConfig(("mamba3",), mimo_rank=2, use_conv=True, groups=2),
    "mamba3-mimo-real": OxidizrConfig(("mamba3",), mimo_rank=2, complex_rope=False),
    "nano-like": OxidizrConfig(("mamba2", "mamba2", "mla", "mamba2", "gqa")),
    "mamba3-hybrid": OxidizrConfig(("mamba3", "mla", "mamba3", "gqa")),
    "mamba1-hybrid": OxidizrConfig(("mamba1", "gqa", "mamba1", "mla")),
}


def write(directory, config):
    weights = reference.random_weights(config)
    reference.write_checkpoint(directory, config, weights)

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(reference.forward(config, weights, tokens.tolist())).float()

    return oracle


@pytest.mark.parametrize("name", CONFIGS)
def test_matches_the_reference(name, tmp_path):
    oracle = write(tmp_path, CONFIGS[name])
    network = load_directory(tmp_path, model_type="oxidizr")
    assert_matches_oracle(network, oracle, tolerance=TOLERANCE)


@pytest.mark.parametrize("kind", ["mamba2", "mamba3"])
def test_decay_override_replaces_the_stored_rates(kind, tmp_path):
    config = OxidizrConfig((kind, kind))
    write(tmp_path, config)
    weights = reference.random_weights(config)
    overridden = dataclasses.replace(config, a_override=True)
    spec = family_builder("oxidizr")(read_view(tmp_path, json.loads((tmp_path / "config.json").read_text())))
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.token_mixer, Mamba2Spec | Mamba3Spec)
        layers.append(
            dataclasses.replace(layer, token_mixer=dataclasses.replace(layer.token_mixer, a_override="-(1..H)"))
        )
    network = load_network(
        dataclasses.replace(spec, layers=tuple(layers)), [tmp_path / "model.safetensors"], dtype=torch.float32
    )

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(reference.forward(overridden, weights, tokens.tolist())).float()

    assert_matches_oracle(network, oracle, tolerance=TOLERANCE)
