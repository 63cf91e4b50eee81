"""Requests and outputs of the engine: what they are without further arguments."""

from __future__ import annotations

import dataclasses

import pytest

from inference.engine.request import EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from inference.values.sampling_params import SamplingParams


def test_a_request_can_be_repeated_with_what_was_delivered():
    first = EngineRequest("r", (1, 2), SamplingParams(max_tokens=5), eos_token_ids=(0,), priority=3)
    again = dataclasses.replace(first, prior_output_token_ids=(7, 8))
    assert (again.prompt_token_ids, again.priority, again.eos_token_ids) == ((1, 2), 3, (0,))
    assert (first.prior_output_token_ids, again.prior_output_token_ids) == ((), (7, 8))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.priority = 4


def test_outputs_share_no_list():
    left, right = EngineOutput("a"), EngineOutput("b")
    left.new_token_ids.append(5)
    assert right.new_token_ids == []
    assert (left.finish_reason, left.error, left.logprobs, left.pooled) == (None, None, None, None)


def test_reasons_are_the_words_of_the_api():
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]


def test_logprobs_are_without_alternatives_unless_they_were_requested():
    assert TokenLogprobs(5, -0.5, 1).top == ()
