"""Logits processors: each touches the entries of its own rows, and only those."""

from __future__ import annotations

import math

import pytest
import torch

from inference.engine.sampling.logits_processors import InvalidTokens, LogitBias, MinTokens, Penalties
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams

VOCAB = 6
CPU = torch.device("cpu")


def state(prompt=(), output=(), stop_ids=(), **params) -> SamplingState:
    return SamplingState(SamplingParams(**{"seed": 1} | params), stop_ids, prompt, output)


def changed(processor, *rows: SamplingState, value: float = 1.0) -> dict[tuple[int, int], float]:
    """Entries that a processor changes in logits that are all alike."""
    logits = torch.full((len(rows), VOCAB), value)
    processor.apply(logits, rows)
    return {(row, token): round(float(logits[row, token]), 4) for row, token in (logits != value).nonzero().tolist()}


def test_invalid_tokens_are_masked_in_all_rows():
    assert changed(InvalidTokens([2, 5], CPU), state(), state()) == {
        (row, token): -math.inf for row in (0, 1) for token in (2, 5)
    }
    assert changed(InvalidTokens([], CPU), state()) == {}


def test_ends_are_masked_below_min_tokens():
    rows = [state(stop_ids=[3], min_tokens=2, output=[1]), state(stop_ids=[3], min_tokens=1, output=[1]), state()]
    assert changed(MinTokens(), *rows) == {(0, 3): -math.inf}


def test_biases_are_added_by_row():
    rows = [state(), state(logit_bias={0: 2.5, 4: -1.0}), state(logit_bias={0: 1.0})]
    assert changed(LogitBias(), *rows) == {(1, 0): 3.5, (1, 4): 0.0, (2, 0): 2.0}


@pytest.mark.parametrize(("value", "expected"), [(1.0, 0.5), (-1.0, -2.0)])
def test_repetition_looks_at_prompt_and_output(value, expected):
    found = changed(Penalties(), state(), state([0], [1], repetition_penalty=2.0), value=value)
    assert found == {(1, 0): expected, (1, 1): expected}


def test_the_smallest_repetition_penalty_leaves_logits_finite():
    logits = torch.tensor([[2.0, -3.0, 0.0, 1.0, 1.0, 1.0]])
    Penalties().apply(logits, [state([0, 1, 2], repetition_penalty=5e-324)])
    assert logits.isfinite().all()
    assert logits.argmax() == 0
    assert logits[0, 1:].max() == 1.0


def test_presence_and_frequency_look_at_the_output():
    row = state([0], [1, 1, 2], presence_penalty=0.25, frequency_penalty=0.5)
    assert changed(Penalties(), row) == {(0, 1): -0.25, (0, 2): 0.25}
