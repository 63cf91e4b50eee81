"""Captured decodes: padding changes nothing, and a replay gives what the eager step gives."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_models import random_network
from inference.engine.engine import Engine
from inference.modelling.backends.triton.cuda_graphs import DecodeGraphs, StaticBatch, padded_sizes
from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec
from tests.gpu.test_networks import STACKS, VOCAB, config, generate, make_spec


def test_padded_sizes():
    assert padded_sizes(1) == (1,)
    assert padded_sizes(6) == (1, 2, 4, 6)
    assert padded_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert padded_sizes(130)[-3:] == (96, 128, 130)


@pytest.mark.parametrize("name", ["llama", "deepseek", "nemotron", "jamba", "rwkv", "griffin", "xlstm"])
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
    graphs = DecodeGraphs(network, spec, runner.layer_states, static, max_rows=4)

    class Padded:
        """``DecodeGraphs.run`` without a graph."""

        def run(self, batch: ForwardBatch) -> torch.Tensor:
            static.load(batch)
            return graphs.run_padded(4)[: batch.num_decodes]

    monkeypatch.setattr(runner, "_graphs", Padded())
    assert generate(engine, prompts) == wanted
    for tensors in runner.layer_states:
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
