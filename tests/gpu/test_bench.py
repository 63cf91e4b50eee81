"""The GPU benchmark's own arithmetic, and its way through the engine with a small network."""

from __future__ import annotations

import torch

from bench import gpu
from bench.gpu import measure_decode, prefill_operations, step_bytes
from bench.gpu_models import NORM, delta_9b, hybrid_8b, llama_7b, llama_8b, llama_spec, quantise_network, random_network
from inference.modelling.backends import backend as kernels
from inference.modelling.layers.linear import network_bytes
from inference.modelling.quantisation import weights_bytes
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import MoESpec


def test_shapes_have_the_sizes_that_they_are_named_for():
    sizes = [round(make().num_parameters() / 1e9, 1) for make in (llama_7b, llama_8b, hybrid_8b, delta_9b)]
    assert sizes == [6.7, 8.0, 8.1, 9.0]


def test_bytes_and_operations(device):
    spec = llama_spec(128, 1, 4, 2, 128, 50, dtype="float32")
    network = random_network(spec, device, torch.float32)
    matrices = 256 * 128 + 128 * 128 + 256 * 128 + 128 * 128
    others = 3 * 128 + 128 * 50
    assert step_bytes(network, spec, 1, 9) == 4 * (matrices + others + 128 + 10 * 2 * 64)
    assert prefill_operations(spec, 8) == 2 * matrices * 8 + 2 * 128 * 64
    quantise_network(network, "int4")
    head, row, down = 50 * (128 + 2), 128 + 2, 128 * (128 + 2)
    in_int4 = (matrices - 128 * 128) * 9 // 16
    assert step_bytes(network, spec, 1, 9) == in_int4 + down + head + row + 4 * (3 * 128 + 10 * 2 * 64)
    assert network_bytes(network) == weights_bytes(spec, "float32", "int4")


def test_bytes_of_experts(device):
    """Of four experts a row reads two; the small matrix of the router stays."""
    layer = LayerSpec(channel_mixer=MoESpec(4, 2, 64), channel_norm=NORM)
    spec = ModelSpec("huggingface", "moe", 128, 50, 64, (layer,), NORM, "float32", tie_word_embeddings=True)
    network = quantise_network(random_network(spec, device, torch.float32), "int8")
    experts = 3 * 64 * 128 + 2 * (2 * 64 + 128)
    assert step_bytes(network, spec, 1, 9) == 2 * experts + 50 * (128 + 2) + 4 * (4 * 128 + 2 * 128)


def test_decode_of_a_quantised_network(device, monkeypatch):
    spec = llama_spec(64, 1, 2, 1, 64, 50, dtype="float32")
    network = quantise_network(random_network(spec, device, torch.float32), "int8")
    if kernels.INTERPRETED:  # the interpreter takes seconds for the usual prompt
        monkeypatch.setattr(gpu, "PROMPT", 9)
    assert measure_decode(network, spec, str(device), new=2) > 0
