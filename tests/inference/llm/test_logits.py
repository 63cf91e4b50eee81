"""Differences of logits are measured as they are defined."""

from __future__ import annotations

import math

import pytest
import torch

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.llm.logits import compare_logits, text_logits
from inference.llm.options import LLMOptions
from models_registry.detection.inspection import inspect_checkpoint


def test_equal_distributions_have_no_difference() -> None:
    logits = torch.randn(5, 7)
    found = compare_logits([logits + 3.0], [logits])  # the same distribution
    assert (found.num_tokens, found.top1_agreement) == (5, 1.0)
    assert found.mean_kl == pytest.approx(0.0, abs=1e-9)
    assert found.max_difference == pytest.approx(0.0, abs=1e-5)


def test_the_divergence_is_from_the_reference() -> None:
    reference, own = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    found = compare_logits([own, own], [reference, reference])
    assert found.mean_kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert found.max_difference == pytest.approx(math.log(2), rel=1e-6)
    assert compare_logits([own.flip(1)], [reference]).num_tokens == 1


def test_a_padded_vocabulary_is_cut() -> None:
    logits = torch.randn(2, 5)
    padded = torch.cat([logits, torch.full((2, 3), 9.0)], 1)
    assert compare_logits([padded], [logits]).mean_kl == pytest.approx(0.0, abs=1e-9)


def test_no_numbers_are_no_agreement() -> None:
    assert math.isnan(compare_logits([torch.full((1, 3), math.nan)], [torch.zeros(1, 3)]).mean_kl)


def test_logits_of_a_network() -> None:
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    one, two = text_logits(
        found.spec, found.weight_paths, [[1, 2, 3], [1, 2, 3, 4, 5]], options=LLMOptions(dtype="float32")
    )
    assert (one.shape, two.shape) == ((3, found.spec.vocab_size), (5, found.spec.vocab_size))
    torch.testing.assert_close(one, two[:3], rtol=1e-4, atol=1e-4)  # float32, other shapes of products
