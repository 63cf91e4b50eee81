"""A router that remembers: what it reads of the layer before, and the choice of no expert."""

from __future__ import annotations

import torch

from inference.modelling.layers.memory_moe import MemoryMixtureOfExperts
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.zaya import MemoryMoESpec

HIDDEN, ROWS = 8, 6


def make(*, reads_memory: bool = True) -> MemoryMixtureOfExperts:
    spec = MemoryMoESpec(
        3, 1, 5, normalise_top_k=False, router_width=4, memory_norm=NormSpec(eps=1e-6), reads_memory=reads_memory
    )
    layer = MemoryMixtureOfExperts(spec, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def test_the_memory_is_what_was_read_with_the_layers_before() -> None:
    layer, hidden, memory = make(), torch.randn(ROWS, HIDDEN), torch.randn(ROWS, 4)
    own = hidden @ layer.router.down.weight.T + layer.router.down.bias
    torch.testing.assert_close(layer(hidden, memory)[1], own + memory * layer.router.memory_scale)
    assert layer.router.memory_scale is not None
    first = make(reads_memory=False)
    own = hidden @ first.router.down.weight.T + first.router.down.bias
    torch.testing.assert_close(first(hidden, None)[1], own)


def test_the_best_choice_with_its_bias_weighs_by_its_score_without() -> None:
    layer, hidden, memory = make(), torch.randn(ROWS, HIDDEN), torch.randn(ROWS, 4)
    mixed, _ = layer(hidden, memory)
    scores = layer.router(hidden, memory)[0].softmax(-1)
    for row in range(ROWS):
        best = int((scores[row] + layer.router.correction_bias).argmax())
        expected = torch.zeros(HIDDEN)
        if best < 3:
            expected = layer.experts.run(best, hidden[row : row + 1])[0] * scores[row, best]
        torch.testing.assert_close(mixed[row], expected)


def test_no_expert_gives_nothing() -> None:
    layer, hidden, memory = make(), torch.randn(ROWS, HIDDEN), torch.randn(ROWS, 4)
    layer.router.correction_bias.data = torch.tensor([0.0, 0.0, 0.0, 9.0])
    assert (layer(hidden, memory)[0] == 0).all()
