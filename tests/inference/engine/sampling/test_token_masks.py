"""Masks in the sampler: what is refused is never drawn, and how a mask is written makes no difference."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from inference.engine.sampling.sampler import Sampler
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.sampling.token_masks import NARROW, TokenMasks, apply_at_once, apply_by_row
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams
from inference.values.token_constraint import TokenMask
from tests.inference.engine.sampling.reference_sampler import SampledRow, rows_of

V = 4096
DEVICE = torch.device("cpu")


class Fixed:
    """Allows the same ids for ever."""

    def __init__(self, ids: np.ndarray, *, allows: bool) -> None:
        self.error: str | None = None
        self.must_end = False
        self.is_finished = False
        self.threads: list[int] = []
        self.accepted: list[int] = []
        listed = np.sort(ids) if allows else np.setdiff1d(np.arange(V), ids)
        self._mask = TokenMask(listed.astype(np.int64), allows)

    def mask(self) -> TokenMask:
        self.threads.append(threading.get_ident())
        return self._mask

    def allows(self, token_id: int) -> bool:
        return self._mask.allows == (token_id in self._mask.ids)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def drawn(logits: torch.Tensor, states: list[SamplingState]) -> list[SampledRow | BlazrError]:
    return rows_of(Sampler((7, 9), DEVICE).sample(logits.clone, states))


PARAMS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 2.0, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "logit_bias": {5: 30.0, 100: -30.0}, "logprobs": 2},
    {"temperature": 1.0, "repetition_penalty": 2.0, "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("count", [1, 2, 30, NARROW, NARROW + 1, V - 3])
def test_both_ways_to_write_a_mask_and_masked_logits_give_the_same_tokens(count: int) -> None:
    generator = np.random.default_rng(count)
    logits = torch.from_numpy(generator.normal(0, 3, (len(PARAMS) * 4, V)).astype(np.float32))
    rows = [(values, seed) for values in PARAMS for seed in range(4)]
    # 7 and 9 are no tokens.
    allowed = [generator.choice(np.setdiff1d(np.arange(V), [7, 9]), min(count, V - 3), replace=False) for _ in rows]
    found = []
    for allows in (True, False):
        states = [
            SamplingState(SamplingParams(seed=seed, **values), (), (3,), (4, 4), Fixed(ids, allows=allows))
            for (values, seed), ids in zip(rows, allowed, strict=True)
        ]
        found.append(drawn(logits, states))
    assert found[0] == found[1]
    masked = torch.full_like(logits, -torch.inf)
    for at, ids in enumerate(allowed):
        masked[at, ids] = logits[at, ids]
    plain = [SamplingState(SamplingParams(seed=seed, **values), (), (3,), (4, 4)) for values, seed in rows]
    expected = drawn(masked, plain)
    for result, other, ids in zip(found[0], expected, allowed, strict=True):
        assert isinstance(result, SampledRow) and isinstance(other, SampledRow)
        assert result.token_id == other.token_id
        assert result.token_id in ids


@pytest.mark.parametrize("allows", [(True, True), (False, False), (True, False), ()])
def test_both_ways_to_apply_masks_agree(allows: tuple[bool, ...]) -> None:
    generator = np.random.default_rng(2)
    masks = [
        (2 * at, Fixed(generator.choice(V, 50 + at, replace=False), allows=choice).mask())
        for at, choice in enumerate(allows)
    ]
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(1))
    left, right = logits.clone(), logits.clone()
    apply_by_row(left.numpy(), masks)
    apply_at_once(right, masks)
    assert torch.equal(left, right)
    assert [int((row > -torch.inf).sum()) for row in left[: 2 * len(masks) : 2]] == [
        50 + at for at in range(len(masks))
    ]
    assert torch.equal(left[[1, 3]], logits[[1, 3]])


class Unmasked(Fixed):
    """Has no mask to give."""

    def mask(self) -> TokenMask:
        raise AssertionError("nobody needs it")


def test_a_greedy_row_needs_no_mask_where_its_likeliest_token_is_allowed() -> None:
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(1))
    best = logits.argsort(dim=-1, descending=True)
    allowed = [best[0, 0], best[1, 3]]
    states = [
        SamplingState(SamplingParams(temperature=0.0), (), (), (), kind(np.array([int(token)]), allows=True))
        for kind, token in zip((Unmasked, Fixed), allowed, strict=True)
    ]
    masks = TokenMasks(DEVICE)
    masks.begin(states)
    assert not masks._thread._threads
    assert drawn(logits, states) == [SampledRow(int(token)) for token in allowed]


def test_ends_are_masked_below_min_tokens_and_allowed_where_nothing_else_is() -> None:
    logits = torch.zeros(2, V)
    logits[:, 3] = 9.0
    end, other = Fixed(np.array([3]), allows=True), Fixed(np.array([3, 4]), allows=True)
    end.must_end = True
    params = SamplingParams(temperature=0.0, min_tokens=2)
    states = [SamplingState(params, (3,), (), (), constraint) for constraint in (end, other)]
    assert drawn(logits, states) == [SampledRow(3), SampledRow(4)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_logits_are_found_behind_a_mask(temperature: float, bad: float) -> None:
    logits = torch.zeros(2, V)
    logits[0, 5] = bad
    params = SamplingParams(temperature=temperature, seed=1)
    states = [SamplingState(params, (), (), (), Fixed(np.array([8]), allows=True)) for _ in range(2)]
    found = drawn(logits, states)
    assert isinstance(found[0], BlazrError) and "numerical_error" in found[0].message
    assert found[1] == SampledRow(8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_without_any_token_is_an_error_of_its_own(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1)
    empty = Fixed(np.array([], dtype=np.int64), allows=True)
    found = drawn(torch.zeros(2, V), [SamplingState(params, (), (), (), empty), SamplingState(params, (), (), ())])
    assert isinstance(found[0], BlazrError) and "every token" in found[0].message
    assert isinstance(found[1], SampledRow)


def test_rows_without_a_constraint_are_left_alone() -> None:
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(seed=seed) for seed in range(6)]
    free = [SamplingState(item, (), (), ()) for item in params]
    expected = drawn(logits, free)
    mixed = [
        SamplingState(item, (), (), (), Fixed(np.array([at]), allows=True) if at % 2 else None)
        for at, item in enumerate(params)
    ]
    found = drawn(logits, mixed)
    for at in range(6):
        assert found[at] == (SampledRow(at) if at % 2 else expected[at])


def test_what_fails_fails_alone() -> None:
    logits = torch.zeros(3, V)
    states = [SamplingState(SamplingParams(seed=1), (), (), (), Fixed(np.array([5]), allows=True)) for _ in range(3)]
    assert states[1].constraint is not None
    states[1].constraint.error = "too deep"
    found = drawn(logits, states)
    assert found[0] == found[2] == SampledRow(5)
    assert isinstance(found[1], BlazrError) and "too deep" in found[1].message


def test_a_row_whose_few_allowed_tokens_are_all_masked_fails_alone() -> None:
    # The other row has more allowed tokens, so that the first row's are padded.
    allowed = Fixed(np.array([3]), allows=True), Fixed(np.array([4, 5, 6]), allows=True)
    states = [SamplingState(SamplingParams(seed=1, min_tokens=2), {3}, (), (), constraint) for constraint in allowed]
    failed, other = drawn(torch.zeros(2, V), states)
    assert isinstance(failed, BlazrError) and "min_tokens" in failed.message
    assert isinstance(other, SampledRow) and other.token_id in (4, 5, 6)


def test_masks_are_computed_once_in_a_thread_of_their_own() -> None:
    masks = TokenMasks(DEVICE)
    constraint = Fixed(np.array([5]), allows=True)
    state = SamplingState(SamplingParams(seed=1), (), (), (), constraint)
    masks.begin([SamplingState(SamplingParams(), (), (), ())])
    assert not masks._thread._threads
    masks.begin([state])
    masks.begin([state])
    masks.finish()
    assert len(constraint.threads) == 1 and constraint.threads[0] != threading.get_ident()
    threads = set(masks._thread._threads)
    masks.close()
    assert threads and not any(thread.is_alive() for thread in threads)


def test_a_mask_that_raises_fails_its_request() -> None:
    class Broken(Fixed):
        def mask(self) -> TokenMask:
            raise RuntimeError("x")

    masks = TokenMasks(DEVICE)
    broken = Broken(np.array([5]), allows=True)
    masks.begin([SamplingState(SamplingParams(seed=1), (), (), (), broken)])
    masks.close()
    assert broken.error is not None and "RuntimeError" in broken.error
