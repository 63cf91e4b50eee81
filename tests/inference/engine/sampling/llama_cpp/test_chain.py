"""The further samplers against plain references of their formulas, in batches of all kinds, and what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference.engine.sampling import row_ops
from inference.engine.sampling.llama_cpp import chain as chain_module
from inference.engine.sampling.llama_cpp.chain import XTC_STREAM, draw_from_chain
from inference.engine.sampling.random_draws import uniforms
from inference.engine.sampling.sampler import draw
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.sampling.llama_cpp.reference_chain import chain, mirostat, next_mu
from tests.inference.engine.sampling.reference_sampler import invert

VOCAB = 40

SAMPLERS = {
    "typical_p": {"typical_p": 0.6},
    "top_n_sigma": {"top_n_sigma": 1.2},
    "dynatemp": {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.08},
    "all": {"top_n_sigma": 2.0, "top_k": 30, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.02, "xtc_probability": 0.5,
            "dynatemp_range": 0.3},
    "none": {},
    "top_p": {"top_p": 0.8},
}  # fmt: skip


def state(output=(), **params) -> SamplingState:
    values = {"seed": 1} | params
    return SamplingState(SamplingParams(**values), (), (1, 2), output)


@st.composite
def rows(draw_, *, with_mirostat: bool = False):
    """Logits (coarse, so that many are equal, or fine; some masked), and a state that uses a few samplers."""
    rng = np.random.default_rng(draw_(st.integers(0, 2**32)))
    logits = rng.normal(0, 2, VOCAB).astype(np.float32)
    if draw_(st.booleans()):
        logits = np.round(logits)
    logits[rng.random(VOCAB) < draw_(st.sampled_from([0.0, 0.5]))] = -np.inf
    logits[draw_(st.integers(0, VOCAB - 1))] = 1.5
    values = {
        "temperature": draw_(st.sampled_from([0.3, 1.0, 1.7])),
        "seed": draw_(st.integers(-(2**63), 2**63 - 1)),
    }
    if with_mirostat:
        values |= {
            "mirostat": draw_(st.sampled_from([1, 2])),
            "mirostat_tau": draw_(st.sampled_from([0.5, 3.0, 5.0])),
            "mirostat_eta": draw_(st.sampled_from([0.1, 0.6])),
        }
    else:
        values |= {
            "top_k": draw_(st.sampled_from([0, 1, 5, VOCAB, 1000])),
            "top_p": draw_(st.sampled_from([1.0, 0.5, 0.9])),
            "min_p": draw_(st.sampled_from([0.0, 0.04, 0.6])),
            "typical_p": draw_(st.sampled_from([1.0, 0.0, 0.2, 0.7, 0.95])),
            "top_n_sigma": draw_(st.sampled_from([-1.0, 0.0, 0.5, 1.5])),
            "dynatemp_range": draw_(st.sampled_from([0.0, 0.5, 2.0])),
            "dynatemp_exponent": draw_(st.sampled_from([1.0, 0.5, 3.0])),
            "xtc_probability": draw_(st.sampled_from([0.0, 0.5, 1.0])),
            "xtc_threshold": draw_(st.sampled_from([0.0, 0.03, 0.1, 0.5, 0.6])),
        }
    return logits, SamplingState(SamplingParams(**values), (), (), list(range(draw_(st.integers(0, 5)))))


def number_of(row: SamplingState, stream: int = 0) -> float:
    assert row.params.seed is not None
    return float(uniforms([row.params.seed + stream], [row.num_output_tokens])[0])


def agrees(token_id: int, probabilities: dict[int, float], number: float) -> bool:
    """Whether it is the token at ``number``; rounding may move a number that is next to a border."""
    near = {invert(probabilities, min(max(number + shift, 0.0), 1 - 1e-9)) for shift in (-1e-5, 0.0, 1e-5)}
    return token_id in near


@given(st.lists(rows(), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_batch_agrees_with_the_reference_row_by_row(batch):
    logits = torch.from_numpy(np.stack([values for values, _ in batch]))
    found = draw_from_chain(logits, [row for _, row in batch]).tolist()
    for (values, row), token_id in zip(batch, found, strict=True):
        probabilities, margin = chain(values, row.params, number_of(row, XTC_STREAM))
        assume(margin > 1e-5)
        assert agrees(token_id, probabilities, number_of(row)), (row.params, probabilities)


@given(st.lists(rows(with_mirostat=True), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_mirostat_agrees_with_the_reference_over_several_tokens(batch):
    logits = torch.from_numpy(np.stack([values for values, _ in batch]))
    states = [row for _, row in batch]
    mus = [2 * row.params.mirostat_tau for row in states]
    for step in range(4):
        moved = logits.roll(7 * step, 1)
        found = draw_from_chain(moved, states).tolist()
        for at, (row, token_id) in enumerate(zip(states, found, strict=True)):
            probabilities, margin = mirostat(moved[at].tolist(), row.params, mus[at])
            assume(margin > 1e-4)
            assert agrees(token_id, probabilities, number_of(row)), (row.params, mus[at])
            mus[at] = next_mu(mus[at], row.params, probabilities[token_id])
            row.append(token_id)
            assert row.mu == pytest.approx(mus[at], abs=1e-4)


def test_mirostat_steers_the_surprise_to_what_is_wanted():
    rng = np.random.default_rng(1)
    for version in (1, 2):
        row = state(mirostat=version, mirostat_tau=2.5, mirostat_eta=0.1)
        surprises = []
        for _ in range(600):
            logits = torch.from_numpy(rng.normal(0, 1.5, (1, 200)).astype(np.float32))
            row.append(int(draw_from_chain(logits, [row])[0]))
            surprises.append(row.surprise)
        assert np.mean(surprises[200:]) == pytest.approx(2.5, abs=0.3)


@pytest.mark.parametrize("vocab", [VOCAB, 3000])
def test_a_row_draws_the_same_alone_and_in_any_batch(vocab, monkeypatch):
    monkeypatch.setattr(row_ops, "CPU_SLICE", 3 * vocab)  # slices of three rows
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 3, (27, vocab)).astype(np.float32))
    values = [dict(SAMPLERS[name]) | {"seed": seed} for seed in range(3) for name in SAMPLERS]
    together = draw(logits.clone(), [state(range(4), **item) for item in values]).tolist()
    order = np.random.default_rng(3).permutation(len(values)).tolist()
    shuffled = draw(logits[order].clone(), [state(range(4), **values[at]) for at in order]).tolist()
    assert [shuffled[order.index(at)] for at in range(len(values))] == together
    for at, item in enumerate(values):
        assert draw(logits[at : at + 1].clone(), [state(range(4), **item)]).tolist() == [together[at]]


def test_rows_without_further_samplers_are_left_to_the_plain_draw(monkeypatch):
    from inference.engine.sampling import sampler

    def never(*args):
        raise AssertionError

    monkeypatch.setattr(sampler, "draw_from_chain", never)
    plain = [state(seed=seed, top_p=0.9, min_p=0.01, temperature=0.8, repetition_penalty=1.1) for seed in range(4)]
    off = state(typical_p=0.0, top_n_sigma=-1.0, dry_multiplier=0.5, mirostat_tau=3.0, xtc_threshold=0.2)
    assert len(draw(torch.randn(5, VOCAB), [*plain, off])) == 5
    assert state(mirostat=2).uses_chain
    assert not state(mirostat=2, temperature=0.0).uses_chain


def test_the_given_logits_stay_as_they_are():
    logits = torch.randn(len(SAMPLERS), VOCAB)
    before = logits.clone()
    draw(logits, [state(**values) for values in SAMPLERS.values()])
    assert torch.equal(logits, before)


def test_xtc_excludes_all_likely_tokens_but_the_least():
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]]))
    drawn = {int(draw_from_chain(logits, [state(seed=seed, xtc_probability=1.0, xtc_threshold=0.15)])[0])
             for seed in range(300)}  # fmt: skip
    assert drawn == {2, 3, 4}
    often = sum(int(draw_from_chain(logits, [state(seed=seed, xtc_probability=0.5, xtc_threshold=0.15)])[0]) < 2
                for seed in range(2000))  # fmt: skip
    assert often / 2000 == pytest.approx(0.5 * 0.7, abs=0.04)


def test_dynatemp_is_cool_where_the_model_is_sure():
    sure, unsure = torch.tensor([[9.0] + [0.0] * 20]), torch.zeros(1, 21)
    row = state(temperature=1.0, dynatemp_range=0.9)
    cool, warm = (float(chain_module._temperatures(values - values.max(), [row])) for values in (sure, unsure))
    assert cool == pytest.approx(0.1, abs=0.05)
    assert warm == pytest.approx(1.9, abs=1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_single_token_that_is_left_is_taken(name):
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 17] = 3.0
    row = state(**SAMPLERS[name])
    assert draw(logits, [row]).tolist() == [17]
    row.append(17)
    assert math.isfinite(row.mu)
