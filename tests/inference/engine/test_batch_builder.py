"""BatchBuilder: a step's schedule as tensors."""

from __future__ import annotations

import torch

from inference.engine.batch_builder import BatchBuilder
from inference.engine.config import EngineConfig
from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.scheduler import SchedulerOutput, scheduled_request
from inference.engine.state_manager import StateManager
from inference.modelling.forward_batch import UNPAGED
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import make_spec, request

CONFIG = EngineConfig(64, 30, 5, 4, max_num_seqs=4, num_snapshot_slots=2, num_spare_slots=1)

CPU = torch.device("cpu")


def builder_of(kind="hybrid"):
    spec = make_spec(kind)
    states = StateManager(spec, CONFIG)
    return BatchBuilder(spec, CONFIG, states), states


def running(states: StateManager, tokens, num_computed) -> Request:
    sampling = SamplingState(SamplingParams(), [], tokens, [])
    item = Request(request("r", tokens), 0, 20, frozenset(), list(tokens), sampling, num_computed)
    item.state = states.allocate()
    assert states.extend(item.state, len(tokens) + 4)
    return item


def test_decodes_come_first_and_draft_tokens_last_in_their_chunk():
    builder, states = builder_of()
    decode, chunk, drafted = (
        running(states, [1, 2, 3], 2), running(states, [4, 5, 6, 7, 8, 9], 1), running(states, [10, 11], 1)
    )  # fmt: skip
    items = [scheduled_request(decode, 1), scheduled_request(chunk, 3), scheduled_request(drafted, 3, (20, 21))]
    assert [item.num_sampled for item in items] == [1, 0, 3]
    batch = builder.build(SchedulerOutput(items, 1), CPU)
    assert batch.input_ids.tolist() == [3, 5, 6, 7, 11, 20, 21]
    assert batch.positions.tolist() == [2, 1, 2, 3, 1, 2, 3]
    assert [(part.start, part.stop, part.context_len) for part in batch.prefills] == [(1, 4, 1), (4, 7, 1)]
    assert batch.state_slots.tolist() == [item.request.state.slot for item in items]
    table = states.kv.block_tables[decode.state.index]
    assert batch.slot_mapping[0] == table[0] * 4 + 2
    assert len(set(batch.slot_mapping.tolist())) == 7
    contexts = batch.attention
    assert contexts.lengths.tolist() == [3, 4, 4] and contexts.first_rows.tolist() == [0, 1, 4, 7]
    assert contexts.slots(0, 1)[0, -1] == batch.slot_mapping[0]
    assert contexts.slots(1, 3)[:, 1:].flatten().tolist() == batch.slot_mapping[1:].tolist()


def test_each_sequence_has_the_blocks_of_its_tokens():
    builder, states = builder_of()
    long, short = running(states, list(range(9)), 8), running(states, [1, 2, 3], 2)
    contexts = builder.build(
        SchedulerOutput([scheduled_request(long, 1), scheduled_request(short, 1)], 2), CPU
    ).attention
    tables = states.kv.block_tables
    assert contexts.blocks.tolist() == [*tables[long.state.index, :3], tables[short.state.index, 0]]
    assert contexts.starts.tolist() == [0, 3] and contexts.block_size == 4


def test_a_model_without_paged_state_writes_to_scratch():
    builder, states = builder_of("slots")
    batch = builder.build(SchedulerOutput([scheduled_request(running(states, [1, 2], 1), 1)], 1), CPU)
    assert batch.slot_mapping.tolist() == [0] and batch.attention is UNPAGED


def test_a_sequence_may_begin_at_a_later_position():
    builder, states = builder_of()
    items = [scheduled_request(running(states, [1, 2, 3], 2), 1), scheduled_request(running(states, [4, 5, 6], 0), 2)]
    step = SchedulerOutput(items, 1)
    plain, shifted = builder.build(step, CPU), builder.build(step, CPU, [7, 0])
    assert shifted.positions.tolist() == [9, 0, 1] and plain.positions.tolist() == [2, 0, 1]
    assert torch.equal(plain.slot_mapping, shifted.slot_mapping)
    assert torch.equal(plain.attention.lengths, shifted.attention.lengths)
