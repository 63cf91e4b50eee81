"""SamplingState: what it counts, what is plain, and copies that go their own way."""

from __future__ import annotations

import pytest

from inference.engine.sampling.sampling_state import SamplingState, TokenCounts
from inference.values.sampling_params import SamplingParams


def state(prompt=(), output=(), **params) -> SamplingState:
    return SamplingState(SamplingParams(**{"seed": 1, "temperature": 0.0} | params), (9,), prompt, output)


def counted(counts: TokenCounts) -> dict[int, float]:
    return dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))


def test_tokens_of_the_prompt_count_as_seen_and_those_of_the_output_by_number():
    counts = TokenCounts([1, 2, 2], [2, 3, 3])
    assert counted(counts) == {1: 0.0, 2: 1.0, 3: 2.0}
    other = counts.copy()
    for token_id in range(100, 300):  # beyond the first size
        other.add(token_id)
    other.add(3)
    assert counted(other)[3] == 3.0 and counted(other)[299] == 1.0
    assert counted(counts) == {1: 0.0, 2: 1.0, 3: 2.0}


@pytest.mark.parametrize(
    "params",
    [{"temperature": 1.0}, {"logprobs": 0}, {"min_tokens": 1}, {"presence_penalty": 0.5}, {"dry_multiplier": 1.0},
     {"logit_bias": {3: 1.0}}],
)  # fmt: skip
def test_only_greedy_rows_without_wishes_are_plain(params):
    assert state().is_plain
    assert not state(**params).is_plain


def test_dry_is_off_without_a_multiplier_or_a_window():
    assert state(dry_multiplier=1.0).dry is not None
    assert state(dry_multiplier=1.0, dry_penalty_last_n=0).dry is None


def test_min_tokens_hold_until_enough_were_generated():
    row = state(min_tokens=2)
    assert row.is_below_min_tokens
    row.append(4)
    row.append(5)
    assert not row.is_below_min_tokens and row.num_output_tokens == 2


def test_copies_go_their_own_way():
    row = state(prompt=[1, 2], repetition_penalty=1.2, dry_multiplier=1.0, output=[1])
    other = row.copy()
    other.append(2)
    assert (row.num_output_tokens, other.num_output_tokens) == (1, 2)
    assert row.counts is not None and other.counts is not None
    assert counted(row.counts) != counted(other.counts)
    assert row.dry is not None and other.dry is not None
    assert row.dry.penalties()[0].tolist() == []  # "1, 2, 1": one token isn't a repetition yet
    assert other.dry.penalties()[0].tolist() == [1]  # "1, 2, 1, 2": it would go on with 1
    assert not row.is_forward_only


def test_mirostat_only_goes_forward():
    row = state(temperature=1.0, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.5)
    assert row.is_forward_only and row.mu == 6.0
    row.surprise = 5.0
    row.append(4)
    assert row.mu == 5.0
    with pytest.raises(AssertionError):
        row.copy()
    assert not state(mirostat=2).is_forward_only  # greedy
