"""The indexer: the best keys are seen, of equal ones the earliest, and never one that can't be seen."""

from __future__ import annotations

import torch

from inference.modelling.layers.indexer import Indexer, choose_keys
from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.test_attention import prefill


def test_the_best_visible_keys_are_seen() -> None:
    torch.manual_seed(0)
    query, weights, keys = torch.randn(3, 2, 4), torch.rand(3, 2), torch.randn(9, 4)
    visible = torch.zeros(3, 9)
    visible[:, 7:] = -torch.inf
    bias = choose_keys((query, weights), keys, visible, 4)
    scores = (torch.relu(torch.einsum("nhd,md->nhm", query, keys)) * weights.unsqueeze(2)).sum(1)[:, :7]
    for row in range(3):
        seen = set(torch.nonzero(bias[row] == 0).flatten().tolist())
        assert seen == set(scores[row].topk(4).indices.tolist())


def test_of_equal_keys_the_earliest_is_seen() -> None:
    bias = choose_keys((torch.randn(1, 2, 4), torch.zeros(1, 2)), torch.randn(6, 4), torch.zeros(1, 6), 3)
    assert (bias[0] == 0).tolist() == [True] * 3 + [False] * 3


def test_a_query_with_few_keys_sees_them_and_no_other() -> None:
    visible = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf, -torch.inf]])
    bias = choose_keys((torch.randn(1, 2, 4), torch.rand(1, 2)), torch.randn(5, 4), visible, 4)
    assert torch.equal(bias, visible)


def test_queries_may_be_made_from_the_hidden_state_and_grow_with_their_position() -> None:
    norm = NormSpec("layer", 1e-6)
    layer = Indexer(IndexerSpec(2, 4, 3, None, norm, hidden_norm=norm, has_softmax_scale=True), 8, 8)
    generator = torch.Generator().manual_seed(1)
    for value in layer.parameters():
        value.data = torch.randn(value.shape, generator=generator)
    hidden, batch = torch.randn(5, 8, generator=generator), prefill(torch.arange(1, 9), 2, 5)
    state = {"index_k": torch.zeros(9, 4)}
    queries, weights = layer.prepare(hidden, torch.zeros(5, 8), batch, state, None)
    centred = hidden - hidden.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    plain = layer.q_proj(normed * layer.hidden_norm.weight + layer.hidden_norm.bias).view(5, 2, 4)
    factors = layer.softmax_scale.scale * torch.arange(3, 8).log()[:, None] + layer.softmax_scale.bias
    torch.testing.assert_close(queries, plain * factors[..., None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["index_k"][3:8], layer.k_norm(layer.k_proj(hidden)))
    assert weights.shape == (5, 2) and (state["index_k"][:3] == 0).all()
