"""The indexer: the best keys are seen, of equal ones the earliest, and never one that can't be seen."""

from __future__ import annotations

import torch

from inference.modelling.layers.indexer import Indexer
from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec


def indexer(top_k: int) -> Indexer:
    return Indexer(IndexerSpec(2, 4, top_k, RopeSpec(1e4, 2), NormSpec("layer", 1e-6)), 8, 6)


def test_the_best_visible_keys_are_seen() -> None:
    torch.manual_seed(0)
    query, weights, keys = torch.randn(3, 2, 4), torch.rand(3, 2), torch.randn(9, 4)
    visible = torch.zeros(3, 9)
    visible[:, 7:] = -torch.inf
    bias = indexer(4).bias((query, weights), keys, visible)
    scores = (torch.relu(torch.einsum("nhd,md->nhm", query, keys)) * weights.unsqueeze(2)).sum(1)[:, :7]
    for row in range(3):
        seen = set(torch.nonzero(bias[row] == 0).flatten().tolist())
        assert seen == set(scores[row].topk(4).indices.tolist())


def test_of_equal_keys_the_earliest_is_seen() -> None:
    bias = indexer(3).bias((torch.randn(1, 2, 4), torch.zeros(1, 2)), torch.randn(6, 4), torch.zeros(1, 6))
    assert (bias[0] == 0).tolist() == [True] * 3 + [False] * 3


def test_a_query_with_few_keys_sees_them_and_no_other() -> None:
    visible = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf, -torch.inf]])
    bias = indexer(4).bias((torch.randn(1, 2, 4), torch.rand(1, 2)), torch.randn(5, 4), visible)
    assert torch.equal(bias, visible)
