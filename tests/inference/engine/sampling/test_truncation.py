"""Truncation against a slow reference: each way to find the last kept token keeps the same tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference.engine.sampling import row_ops, truncation
from inference.engine.sampling.sampler import draw
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.sampling.truncation import mask_min_p, truncate
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.reference_sampler import kept

VOCAB = 40


def state(**params) -> SamplingState:
    return SamplingState(SamplingParams(**params), (), (), ())


@st.composite
def rows_to_truncate(draw_):
    """Logits (coarse, so that many are equal, or fine) and parameters."""
    rng = np.random.default_rng(draw_(st.integers(0, 2**32)))
    logits = rng.normal(0, 3, VOCAB).astype(np.float32)
    if draw_(st.booleans()):
        logits = np.round(logits)
    return logits, SamplingParams(
        temperature=draw_(st.sampled_from([0.3, 1.0, 2.0])),
        top_p=draw_(st.sampled_from([1.0, 0.05, 0.5, 0.9, 0.99])),
        top_k=draw_(st.sampled_from([0, 1, 2, 5, VOCAB, 1000])),
    )


@given(rows_to_truncate(), st.sampled_from([(1024, 2048), (2, 4), (1, 1), (30, 39)]))
@settings(max_examples=400, deadline=None)
def test_truncation_keeps_the_same_tokens_as_the_reference(row, limits):
    """With limits as they are, and so small that 40 tokens take every path."""
    logits, params = row
    probabilities, margin = kept(logits, params)
    assume(margin > 1e-5)
    scaled = torch.from_numpy((logits - logits.max()) / np.float32(params.temperature))[None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "TOPK_LIMIT", limits[0])
        patch.setattr(truncation, "NUCLEUS_COLUMNS", limits[1])
        patch.setattr(row_ops, "MAX_TOPK_COLUMNS", 3)
        truncate(scaled, [(params.top_k, params.top_p)])
    assert set(torch.isfinite(scaled[0]).nonzero().flatten().tolist()) == set(probabilities)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_large_vocabulary_is_truncated_alike(top_p):
    """Flat rows, whose nucleus is beyond the first columns, and steep ones, together and in slices."""
    logits = torch.randn(9, 70_000, generator=torch.Generator().manual_seed(2))
    logits[::2] *= 8
    rows = [state(top_p=top_p, top_k=k, seed=k) for k in (0, 0, 0, 20, 5000, 0, 0, 100, 0)]
    together = draw(logits, rows)
    for at, row in enumerate(rows):
        assert torch.equal(draw(logits[at : at + 1], [row]), together[at : at + 1])
        scaled = logits[at : at + 1] - logits[at].max()
        truncate(scaled, [(row.params.top_k, row.params.top_p)])
        probabilities, margin = kept(logits[at].tolist(), row.params)
        if margin > 1e-6:
            assert int(torch.isfinite(scaled).sum()) == len(probabilities)


def test_top_p_keeps_the_token_that_crosses():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, wanted in ((0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)):
        scaled = logits - logits.max()
        truncate(scaled, [(0, top_p)])
        assert int(torch.isfinite(scaled).sum()) == wanted


def test_min_p_is_relative_to_each_row_s_maximum_and_may_be_off():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(3, 4).clone() + torch.tensor(
        [[0.0], [2.0], [-3.0]]
    )
    mask_min_p(logits, logits.amax(-1, keepdim=True), [0.29, 0.0, 1.0])
    assert (logits > -math.inf).sum(-1).tolist() == [3, 4, 1]
