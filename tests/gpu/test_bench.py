"""The GPU benchmark's own arithmetic, and its way through the engine with a small network."""

from __future__ import annotations

import torch

from bench import gpu
from bench.gpu import measure_decode, prefill_operations, step_bytes
from bench.gpu_models import hybrid_8b, llama_7b, llama_8b, llama_spec, random_network
from inference.modelling import kernels


def test_shapes_have_the_sizes_that_they_are_named_for():
    assert [round(make().num_parameters() / 1e9, 1) for make in (llama_7b, llama_8b, hybrid_8b)] == [6.7, 8.0, 8.1]


def test_bytes_and_operations(device):
    from inference.modelling.triton.quantised import quantise_linears

    spec = llama_spec(128, 1, 4, 2, 128, 50, dtype="float32")
    network = random_network(spec, device, torch.float32)
    matrices = 256 * 128 + 128 * 128 + 256 * 128 + 128 * 128
    others = 3 * 128 + 128 * 50
    assert step_bytes(network, spec, 1, 9) == 4 * (matrices + others + 128 + 10 * 2 * 64)
    assert prefill_operations(spec, 8) == 2 * matrices * 8 + 2 * 128 * 64
    assert quantise_linears(network, 4) == 4
    assert step_bytes(network, spec, 1, 9) == matrices // 2 + 4 * (matrices // 128 + others + 128 + 10 * 2 * 64)


def test_decode_of_a_quantised_network(device, monkeypatch):
    from inference.modelling.triton.quantised import quantise_linears

    spec = llama_spec(128, 1, 2, 1, 128, 50, dtype="float32")
    network = random_network(spec, device, torch.float32)
    quantise_linears(network, 4)
    if kernels.INTERPRETED:  # the interpreter takes seconds for the usual prompt
        monkeypatch.setattr(gpu, "PROMPT", 9)
    assert measure_decode(network, spec, str(device), new=2) > 0
