"""Speculation's parts that stand alone: options, the n-gram index, acceptance."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.running_request import Request
from inference.engine.sampling.sampler import Sampler, SamplerOutput
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.acceptance import count_accepted, states_along
from inference.engine.speculation.ngram import MAX_CANDIDATES, MAX_MATCH, NgramIndex
from inference.engine.speculation.proposer import Hindsight, NgramProposer
from inference.errors import GenerationFailed, InvalidRequest
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.engine.fakes import request
from tests.inference.engine.sampling.reference_sampler import rows_of

# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("ngram", SpeculativeOptions("ngram")),
        ("ngram,k=6", SpeculativeOptions("ngram", num_tokens=6)),
        ("draft:small/one", SpeculativeOptions("draft", "small/one")),
        ("draft:small, k=3", SpeculativeOptions("draft", "small", num_tokens=3)),
        ("ngram,max_requests=2,min_match=3,adaptive=off", SpeculativeOptions("ngram", "", 0, 2, 3, False)),
    ],
)
def test_options_are_read_from_a_line_and_from_json(text, options):
    assert SpeculativeOptions.parse(text) == options
    assert SpeculativeOptions.from_dict(options.to_dict()) == options
    assert SpeculativeOptions.parse(options.to_line()) == options


@pytest.mark.parametrize(
    "text", ["", "eagle", "ngram,k=0", "ngram,k=x", "ngram,n=3", "draft", "ngram:small", "ngram,k=65"]
)
def test_a_wrong_line_is_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        SpeculativeOptions.parse(text)
    assert caught.value.param == "speculative"


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "ngram",
        {},
        {"method": "eagle"},
        {"method": ["ngram"]},
        {"method": "draft"},
        {"method": "draft", "draft_model": 7},
        {"method": "ngram", "draft_model": "x"},
        {"method": "ngram", "num_tokens": True},
        {"method": "ngram", "num_tokens": 65},
        {"method": "ngram", "max_requests": 0},
        {"method": "ngram", "min_match": 1.5},
        {"method": "ngram", "is_adaptive": 1},
        {"method": "ngram", "depth": 2},
    ],
)
def test_wrong_json_is_refused(payload):
    with pytest.raises(InvalidRequest) as caught:
        SpeculativeOptions.from_dict(payload)
    assert caught.value.param == "speculative"


# --- the n-gram index --------------------------------------------------------------------------


def slow_guess(tokens, width, count):
    """The same rule by searching everything."""
    length = len(tokens)
    ends = [end for end in range(width, length) if tokens[end - width : end] == tokens[length - width :]]
    best, longest = 0, 0
    for end in reversed(ends[-MAX_CANDIDATES:] if length > width else []):
        agreed = width
        while agreed < min(MAX_MATCH, end) and tokens[end - agreed - 1] == tokens[length - agreed - 1]:
            agreed += 1
        if agreed > longest:
            best, longest = end, agreed
    if best == 0:
        return []
    text = list(tokens)
    for number in range(count):
        text.append(text[best + number])
    return text[length:]


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    width=st.integers(1, 4),
    count=st.integers(1, 9),
    grown=st.lists(st.integers(1, 9), max_size=12),
)
def test_the_index_finds_what_a_search_finds_however_the_text_grew(tokens, width, count, grown):
    index = NgramIndex(width)
    length = 1
    for more in grown:
        assert index.propose(tokens[:length], count) == slow_guess(tokens[:length], width, count)
        length = min(len(tokens), length + more)
    assert index.propose(tokens, count) == slow_guess(tokens, width, count)


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=30, max_size=60),
    width=st.integers(1, 4),
    grown=st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_hindsight_is_what_a_search_before_would_have_had_right(tokens, width, grown):
    index = NgramIndex(width)
    assert index.hindsight(tokens) == (0, 0, 0)
    length = 1
    index.agreement(tokens[:length])
    for more in grown:
        known, length = length, min(len(tokens), length + more)
        guesses = slow_guess(tokens[:known], width, length - known)
        right = [guess == token for guess, token in zip(guesses, tokens[known:length], strict=False)]
        agreed, num_new, held = index.hindsight(tokens[:length])
        assert bool(agreed) == bool(guesses)
        assert (num_new, held) == (len(guesses), [*right, False].index(False))
        index.agreement(tokens[:length])
        assert index.hindsight(tokens[:length]) == (0, 0, 0), "nothing came"


def test_the_proposer_tells_only_of_guesses_that_nobody_asked_for():
    proposer = NgramProposer(2)
    params = SamplingParams()
    first, second = (
        Request(source, 0, 20, frozenset(), [1, 2, 3, 1, 2], SamplingState(params, [], [1, 2, 3, 1, 2], []))
        for source in (request("a", [1, 2, 3, 1, 2]), request("b", [1, 2, 3, 1, 2]))
    )
    assert [proposer.kind_of(first), proposer.kind_of(second)] == [0, 0]
    assert proposer.take_hindsight() == []
    assert proposer.propose({second: 2}) == {second: [3, 1]}
    for running in (first, second):
        running.token_ids += [3, 1, 9]
        assert proposer.kind_of(running) is None
    assert proposer.take_hindsight() == [Hindsight(first, 0, 3, 2)]
    assert proposer.take_hindsight() == []
    first.token_ids += [5, 1, 2, 3, 1]
    assert proposer.kind_of(first) == 1
    first.token_ids.append(8)
    proposer.kind_of(first)
    assert proposer.take_hindsight() == [Hindsight(first, 1, 1, 0)]


@pytest.mark.parametrize(
    ("tokens", "agreed"), [([1, 2, 3], 0), ([1, 2, 9, 1, 2], 2), ([1, 2, 3, 9, 1, 2, 3], 3), ([5] * 30, MAX_MATCH)]
)
def test_the_index_says_how_much_agrees(tokens, agreed):
    index = NgramIndex(2)
    for _ in range(2):
        assert index.agreement(tokens) == agreed
    assert bool(index.propose(tokens, 3)) == bool(agreed)


def test_the_longest_agreement_wins_and_a_period_goes_on():
    assert NgramIndex(2).propose([1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3], 2) == [4, 9]
    assert NgramIndex(2).propose([9, 2, 3, 4, 8, 2, 3, 7, 1, 2, 3], 2) == [7, 1]
    assert NgramIndex(2).propose([5, 5, 5], 4) == [5, 5, 5, 5]
    assert NgramIndex(1).propose([6, 7, 6], 5) == [7, 6, 7, 6, 7]


# --- acceptance --------------------------------------------------------------------------------


def test_draft_tokens_hold_up_to_the_first_that_the_sampler_did_not_choose():
    sampled = SamplerOutput([9, 4, 5, 6], {}, {})
    assert count_accepted([4, 5], sampled, 1) == 2
    assert count_accepted([4, 9], sampled, 1) == 1
    assert count_accepted([9, 5], sampled, 1) == 0
    assert count_accepted([], sampled, 1) == 0
    assert count_accepted([4, 5], SamplerOutput([9, 4, 5, 6], {}, {2: GenerationFailed("no")}), 1) == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    guesses=st.lists(st.integers(0, 11), max_size=5),
    repetition=st.sampled_from([1.0, 1.3]),
    frequency=st.sampled_from([0.0, 0.7]),
    min_tokens=st.integers(0, 5),
)
def test_states_along_a_guess_are_those_of_the_tokens_one_by_one(seed, guesses, repetition, frequency, min_tokens):
    rng = random.Random(seed)
    params = SamplingParams(
        seed=seed, repetition_penalty=repetition, frequency_penalty=frequency, min_tokens=min_tokens, max_tokens=20
    )
    prompt = [rng.randrange(12) for _ in range(4)]
    state = SamplingState(params, [3], prompt, [1, 1])
    logits = torch.randn(len(guesses) + 1, 12, generator=torch.Generator().manual_seed(seed))
    sampler = Sampler((), torch.device("cpu"))
    together = rows_of(sampler.sample(logits.clone(), states_along(state, guesses), logits.clone))
    for number, row in enumerate(together):
        fresh = SamplingState(params, [3], prompt, [1, 1, *guesses[:number]])
        assert rows_of(sampler.sample(logits[number : number + 1].clone(), [fresh], logits.clone)) == [row]
    assert state.num_output_tokens == 2 and (state.counts is None or state.counts.counts.sum() == 2)
