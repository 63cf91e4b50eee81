"""ModelRunner: state tensors and logits."""

from __future__ import annotations

import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import ModelRunner, allocate_states
from inference.engine.state_manager import StateManager
from tests.inference.engine.fakes import FakeNetwork, make_spec

CONFIG = EngineConfig(64, 30, 5, 4, max_num_seqs=4, num_snapshot_slots=2, num_spare_slots=1)

CPU = torch.device("cpu")


def runner_of(kind="hybrid"):
    spec = make_spec(kind)
    states = StateManager(spec, CONFIG)
    return ModelRunner(FakeNetwork(spec, block_size=4), spec, CONFIG, states), states


def test_states_have_a_row_for_each_token_or_slot():
    attention, recurrent = allocate_states(make_spec("paged"), CONFIG), allocate_states(make_spec("slots"), CONFIG)
    assert all(tensor.shape[0] == 30 * 4 for tensor in attention[0].values())
    assert all(tensor.shape[0] == 5 + 2 + 1 for tensor in recurrent[0].values())


def test_logits_of_named_rows_are_those_of_all():
    runner, _ = runner_of()
    hidden = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], dtype=torch.float64)
    assert torch.equal(runner.logits_of(hidden, [0, 2]), runner.logits_of(hidden, range(3))[[0, 2]])
    assert runner.argmax_of(hidden, range(3)) is None, "this network gives logits only"
