"""Memory of a model before it is loaded: states, weights, the dtype that is chosen."""

from __future__ import annotations

import pytest

import inference.llm.sizes as module
from inference.errors import OutOfCacheBlocks
from inference.llm.options import LLMOptions
from inference.llm.sizes import load_sizes, needed_bytes, plan_states
from tests.inference.llm.harness import Checkpoint


def test_states_are_planned_within_their_memory(checkpoint: Checkpoint) -> None:
    spec = checkpoint.spec
    per_token = spec.state_bytes_per_token("float32")
    plan = plan_states(spec, LLMOptions(cache_bytes=per_token * 16 * 10))
    assert plan.max_model_len == 9 * 16  # one block is scratch
    assert plan.total_bytes <= per_token * 16 * 10
    with pytest.raises(OutOfCacheBlocks, match="lower max_model_len"):
        plan_states(spec, LLMOptions(cache_bytes=per_token * 16 * 10, max_model_len=200))
    with pytest.raises(OutOfCacheBlocks):
        plan_states(spec, LLMOptions(cache_bytes=10))
    full = plan_states(spec, LLMOptions(max_num_seqs=3))
    assert full.max_model_len == 256
    assert (full.num_blocks - 1) * full.block_size == 3 * 256


def test_states_on_a_device_follow_its_budget(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is free: others may be there now that will have left, and weights and states stay within it."""
    budget = 8 << 20
    for free in (0, 1 << 40):
        monkeypatch.setattr(module, "free_memory_bytes", lambda device, free=free: free)
        options = LLMOptions(device="cuda:0", memory_bytes=budget, max_num_seqs=1 << 16)
        needed = needed_bytes(checkpoint.spec, options)
        assert 0.9 * budget < needed <= budget
    with pytest.raises(OutOfCacheBlocks):
        plan_states(checkpoint.spec, LLMOptions(device="cuda:0", memory_bytes=1000))
    monkeypatch.setattr(module, "free_memory_bytes", lambda device: budget)
    needed = needed_bytes(checkpoint.spec, LLMOptions(device="cuda:0", max_num_seqs=1 << 16))
    assert 0.8 * budget < needed <= module.CUDA_SHARE * budget


def test_sizes_of_a_load_add_up(checkpoint: Checkpoint) -> None:
    options = LLMOptions(max_num_seqs=3, max_model_len=64)
    sizes = load_sizes(checkpoint.spec, options)
    assert sizes["weights_bytes"] + sizes["states_bytes"] == needed_bytes(checkpoint.spec, options)
    assert (sizes["max_model_len"], sizes["full_sequences"]) == (64, 3)
    assert sizes["bytes_per_token"] == checkpoint.spec.state_bytes_per_token("float32")


def test_a_cpu_has_what_its_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 12345)
    assert module.free_memory_bytes("cpu") == 12345
