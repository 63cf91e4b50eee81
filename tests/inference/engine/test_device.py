"""Values on their way back from a device."""

from __future__ import annotations

import math

import torch

from inference.engine.device import fetch, fetch_together


def test_values_fetched_together_are_those_fetched_one_by_one():
    tensors = (
        torch.tensor([0, 128_255, 2**53 - 1]),
        torch.tensor([[0.1, -math.inf], [1e-30, 3e38]]),
        torch.tensor([True, False]),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.tensor([0.1], dtype=torch.float64),
    )
    found = fetch_together(tensors)
    assert list(found) == [tensor.tolist() for tensor in tensors] == list(fetch(*tensors))
    assert all(type(value) is int for value in found[0])
    assert math.isnan(fetch_together([torch.tensor([math.nan]), tensors[0]])[0][0])
