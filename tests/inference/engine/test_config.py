"""How a byte budget becomes blocks and slots, and which configurations are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.config import EngineConfig, plan_state_budget
from inference.engine.model_runner import allocate_states
from inference.errors import InvalidRequest, OutOfCacheBlocks
from tests.inference.engine.fakes import make_spec

BLOCK = 16


@given(
    kind=st.sampled_from(["paged", "slots", "hybrid", "stateless"]),
    budget=st.integers(0, 200_000),
    max_num_seqs=st.integers(1, 40),
    max_model_len=st.integers(1, 3000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
@settings(max_examples=300, deadline=None)
def test_a_plan_keeps_its_budget_and_holds_one_whole_sequence(kind, budget, max_num_seqs, max_model_len, dtype):
    spec = make_spec(kind)
    arguments = {"dtype": dtype, "max_num_seqs": max_num_seqs, "max_model_len": max_model_len, "block_size": BLOCK}
    try:
        plan = plan_state_budget(spec, budget_bytes=budget, **arguments)
    except OutOfCacheBlocks:
        per_sequence = spec.state_bytes_per_sequence(dtype) * 2
        assert per_sequence + spec.state_bytes_per_token(dtype) * (max_model_len + 2 * BLOCK) > budget
        return
    assert plan.total_bytes <= budget
    assert 2 <= plan.num_state_slots <= max_num_seqs + 1
    if spec.state_bytes_per_token(dtype):
        assert (plan.num_blocks - 1) * plan.block_size >= max_model_len
        assert plan.num_blocks <= 1 + max_num_seqs * -(-max_model_len // BLOCK)
    else:
        assert plan.num_blocks == 1
    more = plan_state_budget(spec, budget_bytes=2 * budget + 1, **arguments)
    assert more.num_blocks >= plan.num_blocks and more.num_state_slots >= plan.num_state_slots


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_plan_says_what_the_tensors_take(state_dtype):
    spec = make_spec("hybrid")
    sizes = {"budget_bytes": 50_000, "max_num_seqs": 8, "max_model_len": 512, "block_size": BLOCK}
    plan = plan_state_budget(spec, dtype="bfloat16", state_dtype=state_dtype, **sizes)
    config = EngineConfig(
        512, plan.num_blocks, plan.num_state_slots, plan.block_size, dtype="bfloat16", state_dtype=state_dtype
    )
    tensors = [tensor for layer in allocate_states(spec, config) for tensor in layer.values()]
    assert sum(tensor.nbytes for tensor in tensors) == plan.total_bytes


def test_ample_budgets_are_not_spent_beyond_use():
    plan = plan_state_budget(
        make_spec("hybrid"), dtype="float32", budget_bytes=1 << 40, max_num_seqs=4, max_model_len=100, block_size=BLOCK
    )
    assert (plan.num_blocks, plan.num_state_slots) == (1 + 4 * 7, 5)


def test_a_small_budget_is_refused_with_the_numbers():
    with pytest.raises(OutOfCacheBlocks) as caught:
        plan_state_budget(
            make_spec("paged"), dtype="float32", budget_bytes=8 * 100, max_num_seqs=4, max_model_len=1000, block_size=4
        )
    assert "8,032 bytes" in caught.value.message and "lower max_model_len to 96" in caught.value.message
    plan = plan_state_budget(
        make_spec("paged"), dtype="float32", budget_bytes=8 * 100, max_num_seqs=4, max_model_len=96, block_size=4
    )
    assert plan.num_blocks == 25


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_model_len": 0}, "max_model_len"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 2000}, "block_size"),
        ({"max_num_seqs": 600}, "max_num_batched_tokens"),
        ({"dtype": "int3"}, "dtype"),
        ({"state_dtype": "float16"}, "state_dtype"),
    ],
)
def test_bad_configurations_are_refused(options, named):
    values = {"max_model_len": 64, "num_blocks": 9, "num_state_slots": 9}
    with pytest.raises(InvalidRequest, match=named):
        EngineConfig(**(values | options))
