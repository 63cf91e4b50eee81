"""ModelRunner: state tensors and logits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import ModelRunner, allocate_states, fail_unusable
from inference.engine.scheduler import ScheduledRequest
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_prompt_with_an_unusable_row_fails_alone(value):
    requests = [SimpleNamespace(error=None) for _ in range(3)]
    shares = zip(requests, (1, 3, 2), (4, 0, 7), strict=True)
    step = SimpleNamespace(
        num_decodes=1, scheduled=[ScheduledRequest(request, num, computed, True) for request, num, computed in shares]
    )
    hidden = torch.ones((6, 4), dtype=torch.bfloat16)
    fail_unusable(step, hidden)
    assert [request.error for request in requests] == [None] * 3
    hidden[0, 1] = hidden[2, 3] = value  # a decode's is told by its logits
    fail_unusable(step, hidden)
    assert [request.error is None for request in requests] == [True, False, True]
    assert "numerical_error" in requests[1].error.message
    step.scheduled, requests[0].error = step.scheduled[:1], None
    fail_unusable(step, hidden[:1])
    assert requests[0].error is None


def test_logits_of_named_rows_are_those_of_all():
    runner, _ = runner_of()
    hidden = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], dtype=torch.float64)
    assert torch.equal(runner.logits_of(hidden, [0, 2]), runner.logits_of(hidden, range(3))[[0, 2]])
    assert runner.argmax_of(hidden, range(3)) is None, "this network gives logits only"
