"""The sampler's states along draft tokens."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.acceptance import states_along
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.reference_sampler import rows_of


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    drafts=st.lists(st.integers(0, 11), max_size=5),
    repetition=st.sampled_from([1.0, 1.3]),
    frequency=st.sampled_from([0.0, 0.7]),
    min_tokens=st.integers(0, 5),
)
def test_states_along_drafts_are_those_of_the_tokens_one_by_one(seed, drafts, repetition, frequency, min_tokens):
    rng = random.Random(seed)
    params = SamplingParams(
        seed=seed, repetition_penalty=repetition, frequency_penalty=frequency, min_tokens=min_tokens, max_tokens=20
    )
    prompt = [rng.randrange(12) for _ in range(4)]
    state = SamplingState(params, [3], prompt, [1, 1])
    logits = torch.randn(len(drafts) + 1, 12, generator=torch.Generator().manual_seed(seed))
    sampler = Sampler((), torch.device("cpu"))
    together = rows_of(sampler.sample(logits.clone, states_along(state, drafts)))
    for number, row in enumerate(together):
        fresh = SamplingState(params, [3], prompt, [1, 1, *drafts[:number]])
        assert rows_of(sampler.sample(logits[number : number + 1].clone, [fresh])) == [row]
    assert state.num_output_tokens == 2 and (state.counts is None or state.counts.counts.sum() == 2)
