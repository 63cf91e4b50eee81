"""DRY against a plain reference, on its own and in the sampler."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.llama_cpp.dry import Dry, DryHistory
from inference.engine.sampling.llama_cpp.token_search import advance_repeat_lengths, repeat_lengths
from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.llama_cpp.reference_chain import dry_penalties

VOCAB = 12
tokens = st.lists(st.integers(0, 4), max_size=40)
breakers = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=2)
params = st.builds(
    SamplingParams,
    dry_multiplier=st.sampled_from([0.5, 2.0]),
    dry_base=st.sampled_from([1.0, 1.2, 1.75]),
    dry_allowed_length=st.sampled_from([1, 2, 4]),
    dry_penalty_last_n=st.sampled_from([-1, 1, 7, 25]),
)


class Breakers:
    """Sequences of token ids."""

    def __init__(self, sequences: list[tuple[int, ...]]) -> None:
        self.sequences = sequences

    def ends_at(self, token_ids, stop: int) -> bool:
        return any(tuple(token_ids[max(0, stop - len(item)) : stop]) == item for item in self.sequences)


def found(history: DryHistory) -> dict[int, float]:
    token_ids, penalties = history.penalties()
    return dict(zip(token_ids.tolist(), penalties.tolist(), strict=True))


@given(tokens, st.lists(st.integers(0, 4), max_size=6), params, breakers)
@settings(max_examples=400, deadline=None)
def test_penalties_are_those_of_the_reference_also_behind_new_tokens(before, after, values, stops):
    history = DryHistory(values, before, Breakers(stops))
    for number in range(len(after) + 1):
        expected = dry_penalties([*before, *after[:number]], values, stops)
        assert found(history) == pytest.approx(expected, rel=1e-5)
        if number < len(after):
            history.append(after[number])


def lengths_of(token_ids: list[int]) -> list[int]:
    """The repeat length of each position, token by token."""
    found = [0] * len(token_ids)
    for place in range(1, len(token_ids)):
        while found[place] < place and token_ids[place - 1 - found[place]] == token_ids[-1 - found[place]]:
            found[place] += 1
    return found


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=9))
@settings(max_examples=300, deadline=None)
def test_repeat_lengths_of_a_sequence_and_of_one_that_grows(before, after):
    lengths = repeat_lengths(np.array(before, dtype=np.int64))
    assert lengths.tolist() == lengths_of(before)
    for number, token_id in enumerate(after):
        known = np.array([*before, *after[:number]], dtype=np.int64)
        lengths = advance_repeat_lengths(lengths, known, token_id)
        assert lengths.tolist() == lengths_of([*known.tolist(), token_id])


def test_a_copy_goes_its_own_way():
    values = SamplingParams(dry_multiplier=1.0)
    first = DryHistory(values, [1, 2, 3, 1, 2], None)
    second = first.copy()
    second.append(4)
    assert found(first) == {3: 1.0}
    assert found(second) == {}
    first.append(3)
    assert found(first) == pytest.approx({1: 1.75})


def test_the_penalty_never_overflows_nor_takes_long():
    history = DryHistory(SamplingParams(dry_multiplier=100.0, dry_base=10.0), [7] * 20_000, None)
    assert np.isfinite(found(history)[7])
    slow = DryHistory(SamplingParams(dry_multiplier=1.0, dry_base=1.0), [7] * 20_000, None)
    assert found(slow) == {7: 1.0}


@pytest.mark.parametrize("allowed", [2, 15_000, 1 << 24])
def test_a_long_text_of_repetitions_costs_no_more_than_another(allowed):
    """The engine's thread computes the penalty: seconds here would be seconds for every request."""
    started = time.process_time()
    history = DryHistory(SamplingParams(dry_multiplier=1.0, dry_allowed_length=allowed), [7] * 20_000, None)
    for _ in range(50):
        assert set(found(history)) <= {7}
        history.append(7)
    assert time.process_time() - started < 1


def test_a_token_with_a_breaker_in_it_is_not_penalised():
    values = SamplingParams(dry_multiplier=1.0)
    token_ids = [1, 2, 3, 4, 1, 2]
    assert found(DryHistory(values, token_ids, None)) == {3: 1.0}
    assert found(DryHistory(values, token_ids, Breakers([(3,)]))) == {}
    assert found(DryHistory(values, token_ids, Breakers([(3, 4)]))) == {3: 1.0}


def test_the_processor_changes_its_own_rows_only():
    logits = torch.zeros(3, VOCAB)
    history, plain = [1, 2, 3, 1, 2], SamplingParams()
    with_dry = SamplingParams(dry_multiplier=2.0)
    rows = [SamplingState(values, (), history, ()) for values in (plain, with_dry, plain)]
    Dry().apply(logits, rows)
    expected = torch.zeros(3, VOCAB)
    expected[1, 3] = -2.0
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_loop_is_left(temperature):
    """A model that only wants to go round in circles gets out of them, greedy or not."""
    sampler = Sampler((), torch.device("cpu"))
    wanted = {0: 1, 1: 2, 2: 0}

    def generated(**values) -> list[int]:
        row = SamplingState(SamplingParams(seed=1, temperature=temperature, **values), (), (0, 1, 2), ())
        token_ids = [2]
        for _ in range(30):
            logits = torch.zeros(1, VOCAB)
            logits[0, wanted.get(token_ids[-1], 0)] = 12.0
            result = sampler.sample(logits.clone, [row])
            token_ids.append(result.token_ids[0] if hasattr(result, "token_ids") else result[0].token_id)
            row.append(token_ids[-1])
        return token_ids[1:]

    loop = [0, 1, 2] * 10
    assert generated() == loop
    assert generated(dry_multiplier=1.0) != loop
    assert generated(dry_multiplier=1.0)[:6] == loop[:6]
    assert generated(dry_multiplier=1.0, dry_penalty_last_n=0) == loop
