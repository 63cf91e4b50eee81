"""Rules of merges; merges of whole checkpoints are in ``tests/inference/llm/test_merging.py``."""

from __future__ import annotations

import pytest
import torch
from peft.utils.merge_utils import task_arithmetic, ties

from inference.errors import InvalidRequest
from inference.modelling.adapters.merging import MergeRule

DELTAS = [torch.randn(9, 7, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
WEIGHTS = (0.5, 1.5, -0.7)


def test_linear_and_ties_are_pefts() -> None:
    weights = torch.tensor(WEIGHTS)
    torch.testing.assert_close(MergeRule().merge(DELTAS, WEIGHTS), task_arithmetic(DELTAS, weights))
    for density in (0.1, 0.5, 1.0):
        found = MergeRule("ties", density=density).merge(DELTAS, WEIGHTS)
        torch.testing.assert_close(found, ties(DELTAS, weights, density))


def test_slerp_keeps_the_length_and_begins_and_ends_at_its_adapters() -> None:
    first, second = (delta / delta.norm() for delta in DELTAS[:2])
    for share in (0.0, 0.25, 0.5, 1.0):
        found = MergeRule("slerp", share=share).merge([first, second], (1.0, 1.0))
        torch.testing.assert_close(found.norm(), torch.tensor(1.0))
        angle = torch.arccos((first * second).sum())
        torch.testing.assert_close((found * first).sum(), (share * angle).cos(), atol=1e-5, rtol=1e-5)


def test_slerp_of_equal_directions_or_of_nothing_is_a_mixture() -> None:
    delta = DELTAS[0]
    torch.testing.assert_close(MergeRule("slerp").merge([delta, 3 * delta], (1.0, 1.0)), 2 * delta)
    torch.testing.assert_close(MergeRule("slerp").merge([delta, torch.zeros_like(delta)], (1.0, 1.0)), delta / 2)


def test_no_adapters_are_no_merge() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        MergeRule().check(0)
