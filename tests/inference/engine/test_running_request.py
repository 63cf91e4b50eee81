"""Request: what follows from its tokens."""

from __future__ import annotations

import pytest

from inference.engine.request import EngineRequest, FinishReason
from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams


def running(output=(), *, max_tokens=3, stop=(9,), pooling=None, **params) -> Request:
    values = SamplingParams(max_tokens=max_tokens, seed=0, **params)
    source = EngineRequest("r", (1, 9), values, pooling=pooling)
    sampling = SamplingState(values, stop, source.prompt_token_ids, output)
    return Request(source, 4, 2 + max_tokens, frozenset(stop), [1, 9, *output], sampling)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ((), None),  # a stop token in the prompt ends nothing
        ((5,), None),
        ((9,), FinishReason.STOP),
        ((5, 5, 5), FinishReason.LENGTH),
        ((5, 5, 9), FinishReason.STOP),
    ],
)
def test_a_request_ends_with_a_stop_token_or_its_last_one(output, reason):
    assert running(output).ending() is reason


def test_no_tokens_end_a_request_at_once():
    assert running(max_tokens=0).ending() is FinishReason.LENGTH


def test_a_request_decodes_when_only_its_last_token_is_left():
    item = running((5,))
    item.num_computed_tokens = 1
    assert not item.is_decoding and item.num_uncomputed_tokens == 2
    item.num_computed_tokens = 2
    assert item.is_decoding and item.num_uncomputed_tokens == 1
    item.num_computed_tokens, item.num_to_replay = 1, 1
    assert item.is_decoding


def test_memory_errors_count_until_the_request_gets_further_than_ever():
    item = running((5,))
    item.num_computed_tokens = 2
    item.record_progress()
    assert [item.record_memory_error(8), item.record_memory_error(8)] == [1, 2]
    for computed in (0, 1, 2):  # it begins again
        item.num_computed_tokens = computed
        item.record_progress()
    assert item.num_memory_errors == 2
    item.num_computed_tokens = 3
    item.record_progress()
    assert item.num_memory_errors == 0


def test_memory_errors_count_anew_in_a_step_of_half_the_tokens():
    item = running((5,))
    assert [item.record_memory_error(num) for num in (64, 40, 32, 31, 15, 64, 7, 7)] == [1, 2, 1, 2, 1, 2, 1, 2]
    assert [item.record_memory_error(1) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "reads_rows", "can_read_cache"),
    [
        ({}, False, True),
        ({"prompt_logprobs": 1}, True, False),
        ({"pooling": "mean", "max_tokens": 0}, True, False),
        ({"pooling": "last", "max_tokens": 0}, True, True),
    ],
)
def test_requests_for_prompt_rows_read_the_cache_only_if_they_miss_none(values, reads_rows, can_read_cache):
    item = running(**values)
    assert (item.reads_prompt_rows, item.can_read_cache) == (reads_rows, can_read_cache)


def test_prompt_logprobs_are_complete_with_one_for_each_position_but_the_first():
    item = running(prompt_logprobs=1)
    assert not item.has_all_prompt_logprobs
    item.prompt_logprobs.append(None)
    assert item.has_all_prompt_logprobs
    assert (item.rank, item.max_length) == ((0, 4), 5)
