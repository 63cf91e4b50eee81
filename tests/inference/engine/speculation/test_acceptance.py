"""Which draft tokens hold, and the sampler's states along them."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.sampling.sampler import Sampler, SamplerOutput
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.acceptance import count_accepted, states_along
from inference.errors import GenerationFailed
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.reference_sampler import rows_of


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
    together = rows_of(sampler.sample(logits.clone(), states_along(state, drafts), logits.clone))
    for number, row in enumerate(together):
        fresh = SamplingState(params, [3], prompt, [1, 1, *drafts[:number]])
        assert rows_of(sampler.sample(logits[number : number + 1].clone(), [fresh], logits.clone)) == [row]
    assert state.num_output_tokens == 2 and (state.counts is None or state.counts.counts.sum() == 2)
