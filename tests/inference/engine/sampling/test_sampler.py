"""Sampler against a slow reference, the statistics of its draws, and its independence of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.random_draws import uniforms
from inference.engine.sampling.sampler import MIN_LOGPROB, Sampler, draw
from inference.engine.sampling.sampling_state import SamplingState, TokenCounts
from inference.errors import GenerationFailed, InvalidRequest
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.reference_sampler import SampledRow, invert, kept, processed, rows_of

VOCAB = 40
CPU = torch.device("cpu")
INVALID = (3, 39)


def state(prompt=(), output=(), stop_ids=(), **params) -> SamplingState:
    values = {"seed": 1} | params
    return SamplingState(SamplingParams(**values), stop_ids, prompt, output)


def sample(logits: torch.Tensor, rows: list[SamplingState], invalid=()) -> list[SampledRow]:
    sampler = Sampler(invalid, CPU)
    results = rows_of(sampler.sample(logits.clone, rows))
    for result in results:
        assert isinstance(result, SampledRow), result
    return results


token_ids = st.lists(st.integers(0, VOCAB - 1), max_size=30)


@st.composite
def sampling_rows(draw_):
    """One row: logits (coarse, so that many are equal, or fine), history, parameters."""
    rng = np.random.default_rng(draw_(st.integers(0, 2**32)))
    logits = rng.normal(0, 3, VOCAB).astype(np.float32)
    if draw_(st.booleans()):
        logits = np.round(logits)
    params = SamplingParams(
        temperature=draw_(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_p=draw_(st.sampled_from([1.0, 0.05, 0.5, 0.9, 0.99])),
        top_k=draw_(st.sampled_from([0, 1, 2, 5, VOCAB, 1000])),
        min_p=draw_(st.sampled_from([0.0, 0.04, 0.6, 1.0])),
        repetition_penalty=draw_(st.sampled_from([1.0, 1.3, 0.7])),
        presence_penalty=draw_(st.sampled_from([0.0, 1.5, -2.0])),
        frequency_penalty=draw_(st.sampled_from([0.0, 0.4, -1.0])),
        logit_bias=draw_(st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.5]), max_size=4)),
        min_tokens=draw_(st.sampled_from([0, 10])),
        seed=draw_(st.integers(-(2**63), 2**63 - 1)),
        logprobs=draw_(st.sampled_from([None, 0, 3])),
    )
    prompt, output = draw_(token_ids), draw_(token_ids)
    return logits, params, prompt, output, draw_(st.lists(st.integers(0, VOCAB - 1), max_size=3))


@given(st.lists(sampling_rows(), min_size=1, max_size=5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_batch_agrees_with_the_reference_row_by_row(rows, mask_some):
    invalid = INVALID if mask_some else ()
    logits = torch.from_numpy(np.stack([row[0] for row in rows]))
    states = [SamplingState(params, stop, prompt, output) for _, params, prompt, output, stop in rows]
    results = rows_of(Sampler(invalid, CPU).sample(logits.clone, states))
    for (values, params, prompt, output, stop), result in zip(rows, results, strict=True):
        changed = processed(values, params, prompt, output, stop, invalid)
        assert isinstance(result, SampledRow)
        if params.is_greedy:
            # Penalties are computed in float32: near equals may change places.
            assert changed[result.token_id] >= max(changed) - 1e-5
            continue
        probabilities, margin = kept(changed, params)
        if margin > 1e-5:
            number = uniforms([params.seed], [len(output)])[0]
            below = sum(p for token, p in probabilities.items() if token < result.token_id)
            assert result.token_id in probabilities
            assert below - 1e-5 <= number <= below + probabilities[result.token_id] + 1e-5


def test_top_k_1_and_tiny_top_p_are_greedy():
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(-1).tolist()
    rows = [state(top_k=1, seed=i) if i % 2 else state(top_p=1e-9, seed=i) for i in range(6)]
    assert [result.token_id for result in sample(logits, rows)] == best


def test_tiny_temperatures_do_not_overflow():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)) * 50
    for temperature in (1e-300, 1e-6, 1e-4):
        rows = [state(temperature=temperature, seed=i) for i in range(4)]
        assert [result.token_id for result in sample(logits, rows)] == logits.argmax(-1).tolist()


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.zeros(3, VOCAB)
    logits[1, [7, 5]] = 2.0
    assert [result.token_id for result in sample(logits, [state(temperature=0.0)] * 3)] == [0, 5, 0]


def test_draws_follow_the_probabilities():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 12, generator=generator) * 1.5
    count = 20_000
    rows = []
    for position in range(count):
        row = state(temperature=0.8, seed=77)
        row.num_output_tokens = position
        rows.append(row)
    found = np.bincount(draw(logits.expand(count, -1), rows).numpy(), minlength=12)
    expected = torch.softmax(logits[0] / 0.8, -1).double().numpy() * count
    chi_squared = ((found - expected) ** 2 / expected).sum()
    assert chi_squared < 31.3, "11 degrees of freedom: beyond the 99.9 % quantile"


def test_uniform_numbers_are_uniform_and_unrelated():
    count = 4000
    along = uniforms([5] * count, range(count))
    across = uniforms(range(count), [0] * count)
    for numbers in (along, across):
        assert numbers.min() >= 0.0 and numbers.max() < 1.0
        steps = np.sort(numbers)
        distance = np.abs(steps - (np.arange(count) + 0.5) / count).max()
        assert distance < 1.95 / math.sqrt(count), "Kolmogorov-Smirnov, 99.9 %"
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 3.3 / math.sqrt(count)
    assert abs(np.corrcoef(uniforms([5] * count, range(count)), uniforms([6] * count, range(count)))[0, 1]) < 0.06
    assert uniforms([-1], [0]) == uniforms([2**64 - 1], [0])
    # Fixed for ever: a second attempt may run on a newer version.
    fixed = [0.33805245419550545, 0.6935121390102292, 0.9532268638752107]
    assert uniforms([0, 1, 2**62], [0, 1, 10**6]).tolist() == fixed


@given(st.lists(sampling_rows(), min_size=2, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_a_row_is_sampled_alike_in_any_batch(rows, random):
    def outcome(group):
        logits = torch.from_numpy(np.stack([row[0] for row in group]))
        states = [SamplingState(params, stop, prompt, output) for _, params, prompt, output, stop in group]
        return [(result.token_id, result.logprobs) for result in rows_of(Sampler((), CPU).sample(logits.clone, states))]

    together = dict(zip(map(id, rows), outcome(rows), strict=True))
    random.shuffle(rows)
    for row, found in zip(rows, outcome(rows), strict=True):
        assert found == together[id(row)]
        assert outcome([row]) == [found]


def test_counts_grow_as_if_counted_at_once():
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 300, 50).tolist(), rng.integers(0, 300, 400).tolist()
    grown = TokenCounts(prompt, output[:7])
    for token in output[7:]:
        grown.add(token)
    whole = TokenCounts(prompt, output)
    as_dict = lambda counts: dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))  # noqa: E731
    assert as_dict(grown) == as_dict(whole)
    assert set(grown.ids.tolist()) == set(prompt) | set(output)


def test_logprobs_are_of_the_raw_distribution():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    raw = torch.log_softmax(logits.double(), -1)
    rows = [
        state(temperature=0.0, logit_bias={9: 50.0}, logprobs=3),
        state(temperature=0.5, top_k=2, repetition_penalty=2.0, prompt=[1, 2], logprobs=0),
    ]
    biased, drawn = sample(logits, rows)
    assert biased.token_id == 9
    entry = biased.logprobs
    assert entry is not None and entry.token_id == 9
    assert entry.logprob == pytest.approx(raw[0, 9].item(), abs=1e-5)
    assert entry.rank == 1 + int((raw[0] > raw[0, 9]).sum())
    values, ids = raw[0].topk(3)
    assert [token for token, _ in entry.top] == ids.tolist()
    assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert drawn.logprobs is not None and drawn.logprobs.top == ()


def test_ids_without_a_token_are_neither_sampled_nor_listed():
    logits = torch.zeros(2, VOCAB)
    logits[:, 3] = 50.0
    greedy, drawn = sample(logits, [state(temperature=0.0, logprobs=2), state(logprobs=20)], invalid=(3,))
    assert greedy.token_id != 3 and drawn.token_id != 3
    for result in (greedy, drawn):
        assert 3 not in [token for token, _ in result.logprobs.top]
        assert result.logprobs.logprob == pytest.approx(-50.0, abs=0.01)


def test_impossible_tokens_have_a_finite_logprob():
    logits = torch.zeros(1, VOCAB)
    logits[0, 4:] = -math.inf
    (result,) = sample(logits, [state(temperature=0.0, logprobs=20)])
    assert len(result.logprobs.top) == 4
    scores = Sampler((), CPU).score(torch.log_softmax(logits, -1), torch.tensor([7]), [1])
    assert scores[0].logprob == MIN_LOGPROB


def test_min_tokens_masks_what_ends_the_sequence():
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 6] = 10.0, 9.0
    assert sample(logits, [state(temperature=0.0, min_tokens=2, output=[1], stop_ids=(5, 6))])[0].token_id == 0
    assert sample(logits, [state(temperature=0.0, min_tokens=2, output=[1, 1], stop_ids=(5, 6))])[0].token_id == 5


def test_a_row_with_everything_masked_fails_alone():
    logits = torch.zeros(2, 3)
    rows = [state(temperature=0.0, min_tokens=1, stop_ids=(0, 1, 2)), state(temperature=0.0)]
    masked, other = rows_of(Sampler((), CPU).sample(logits.clone, rows))
    assert isinstance(masked, InvalidRequest) and "min_tokens" in masked.message
    assert isinstance(other, SampledRow) and other.token_id == 0


def test_logits_of_nothing_but_minus_infinity_are_an_error_of_the_model_below_min_tokens_too():
    logits = torch.full((1, 3), -torch.inf)
    rows = [state(temperature=0.0, min_tokens=1, stop_ids=(0,))]
    (found,) = rows_of(Sampler((), CPU).sample(lambda: logits, rows))
    assert isinstance(found, GenerationFailed) and "numerical_error" in found.message


def test_reference_inverts_as_documented():
    assert [invert({2: 0.25, 5: 0.75}, number) for number in (0.0, 0.249, 0.25, 0.999)] == [2, 2, 5, 5]
