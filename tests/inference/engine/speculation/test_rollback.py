"""Rollback: recurrent states are kept in spare slots and exchanged."""

from __future__ import annotations

from types import SimpleNamespace

from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.rollback import Rollback
from inference.engine.state_manager import SequenceState
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import request


def parts():
    copies: list[tuple[int, int]] = []
    access = SimpleNamespace(copy_slot=lambda source, target: copies.append((source, target)))
    rollback = Rollback(access, first_slot=10, num_slots=2)
    assert copies == [(0, 10), (0, 11)], "spare slots are written to once"
    copies.clear()
    return rollback, copies


def running(slot: int, num_computed: int) -> Request:
    item = Request(request("r", [1]), 0, 20, frozenset(), [1], SamplingState(SamplingParams(), [], [1], []))
    item.state, item.num_computed_tokens = SequenceState(0, slot), num_computed
    return item


def test_a_state_that_is_restored_changes_places_with_the_request_s_own():
    rollback, copies = parts()
    item = running(3, 7)
    rollback.save(item)
    ((source, spare),) = copies
    assert source == 3 and rollback.num_free == 1
    item.num_computed_tokens = 12
    rollback.restore(item)
    assert (item.state.slot, item.num_computed_tokens) == (spare, 7)
    assert rollback.num_free == 2
    second = running(4, 1)
    rollback.save(second)
    assert copies[-1] == (4, 3), "the request's former slot is a spare one now"


def test_a_state_that_is_saved_again_takes_the_same_slot():
    rollback, copies = parts()
    item = running(3, 7)
    rollback.save(item)
    item.num_computed_tokens = 9
    rollback.save(item)
    assert copies[0] == copies[1] and rollback.num_free == 1
    rollback.restore(item)
    assert item.num_computed_tokens == 9


def test_dropped_states_free_their_slots():
    rollback, _ = parts()
    first, second = running(3, 1), running(4, 2)
    rollback.save(first)
    rollback.save(second)
    assert rollback.num_free == 0
    rollback.drop(first)
    rollback.drop(first)
    assert rollback.num_free == 1
    rollback.drop_all()
    assert rollback.num_free == 2
