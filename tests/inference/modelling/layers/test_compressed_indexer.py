"""CompressedIndexer: windows of tokens by their definition, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.compressed_indexer import CompressedIndexer, tokens_of_windows, visible_entries
from inference.modelling.specs.compressed import CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.test_compressor import batch_of

HIDDEN, RANK, HEADS, WIDTH = 6, 5, 13, 7


def make(window: int, top_k: int) -> CompressedIndexer:
    norm = NormSpec("layer", 1e-4)
    spec = CompressedIndexerSpec(HEADS, top_k, CompressorSpec(window, WIDTH, False, None, None, kv_norm=norm))
    layer, generator = CompressedIndexer(spec, HIDDEN, RANK), torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def defined(layer: CompressedIndexer, hidden: torch.Tensor, latent: torch.Tensor) -> list[set[int]]:
    """The tokens that each row sees."""
    compressor, window = layer.compressor, layer.spec.compressor.window
    keys, gates = (hidden @ compressor.kv_gate_proj.weight.T).chunk(2, 1)
    keys = compressor.kv_norm(keys)
    entries = []
    for first in range(0, len(hidden) - window + 1, window):
        weights = (gates[first : first + window] + compressor.position_bias).softmax(0)
        entries.append((weights * keys[first : first + window]).sum(0))
    queries = layer.q_proj(latent).view(-1, HEADS, WIDTH)
    weights, seen = layer.head_weights(hidden), []
    for at in range(len(hidden)):
        whole = (at + 1) // window
        scores = [float((torch.relu(queries[at] @ entry) * weights[at]).sum()) for entry in entries[:whole]]
        best = sorted(range(whole), key=lambda number: -scores[number])[: layer.spec.top_k]
        own = {number * window + place for number in best for place in range(window)}
        seen.append(own | set(range(whole * window, at + 1)))
    return seen


@pytest.mark.parametrize("pieces", [(19,), (1,) * 19, (3, 1, 1, 5, 2, 7), (8, 1, 10)])
@pytest.mark.parametrize(("window", "top_k"), [(4, 2), (3, 1), (1, 5), (10, 3), (25, 1)])
def test_the_best_whole_windows_are_seen_and_what_lies_behind_them(
    window: int, top_k: int, pieces: tuple[int, ...]
) -> None:
    layer, generator = make(window, top_k), torch.Generator().manual_seed(2)
    hidden, latent = torch.randn(19, HIDDEN, generator=generator), torch.randn(19, RANK, generator=generator)
    state = {part.name: torch.full((80 if part.per == "token" else 4, *part.shape), 3.0) for part in layer.spec.state()}
    found, done = [], 0
    for count in pieces:
        batch, rows = batch_of((2, done, count)), slice(done, done + count)
        (bias,) = layer.choose(layer.prepare(hidden[rows], latent[rows], batch, state), batch, state)
        bias = bias.view(count, -1)
        assert bias.shape[1] == done + count and set(bias.flatten().tolist()) <= {0.0, -torch.inf}
        found += [set((row == 0).nonzero().flatten().tolist()) for row in bias]
        done += count
    assert found == defined(layer, hidden, latent)


def test_sequences_of_a_step_choose_for_themselves() -> None:
    layer, generator = make(4, 1), torch.Generator().manual_seed(3)
    texts = {slot: torch.randn(17, HIDDEN, generator=generator) for slot in (1, 2, 3)}
    latents = {slot: torch.randn(17, RANK, generator=generator) for slot in (1, 2, 3)}
    state = {part.name: torch.zeros(80 if part.per == "token" else 4, *part.shape) for part in layer.spec.state()}
    for slot, count in ((1, 15), (2, 2), (3, 7)):
        layer.prepare(texts[slot][:count], latents[slot][:count], batch_of((slot, 0, count)), state)
    batch = batch_of((1, 15, 1), (2, 2, 1), (3, 7, 5))
    rows = torch.cat((texts[1][15:16], texts[2][2:3], texts[3][7:12]))
    latent = torch.cat((latents[1][15:16], latents[2][2:3], latents[3][7:12]))
    decodes, chunk = layer.choose(layer.prepare(rows, latent, batch, state), batch, state)
    assert decodes.shape == (2, 1, 1, 16)
    seen = [set((row == 0).nonzero().flatten().tolist()) for row in (*decodes[:, 0, 0], *chunk)]
    expected = [defined(layer, texts[slot], latents[slot]) for slot in (1, 2, 3)]
    assert seen == [expected[0][15], expected[1][2], *expected[2][7:12]]


def test_tokens_of_windows_are_theirs_and_those_of_the_own_window() -> None:
    entries = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    found = tokens_of_windows(entries, torch.tensor([7, 4]), 3, 8) == 0
    assert [row.nonzero().flatten().tolist() for row in found] == [[0, 1, 2, 6, 7], [3, 4]]


def test_windows_are_seen_when_they_are_whole() -> None:
    spec = CompressorSpec(3, 4, False, None, None)
    seen = visible_entries(torch.tensor([1, 2, 6]), spec, 3) == 0
    assert seen.tolist() == [[False] * 3, [True, False, False], [True, True, False]]


def test_all_tokens_are_seen_up_to_a_number_of_them() -> None:
    layer = make(4, 2)
    assert layer.spec.seen_tokens == 11
    generator = torch.Generator().manual_seed(4)
    hidden, latent = torch.randn(12, HIDDEN, generator=generator), torch.randn(12, RANK, generator=generator)
    seen = defined(layer, hidden, latent)
    assert all(seen[at] == set(range(at + 1)) for at in range(11)) and len(seen[11]) == 8
