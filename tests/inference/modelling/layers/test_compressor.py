"""Compressor: entries by their definition, however the tokens come, and stored by tokens behind their windows."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.compressor import Compressor, empty_sums, merge, next_window
from inference.modelling.layers.rotary import rotate_last
from inference.modelling.specs.compressed import CompressorSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec

HIDDEN, BLOCK = 6, 4
ROPE = RopeSpec(100.0, 4, interleaved=True)


def make(window: int, *, overlaps: bool, width: int = 7) -> Compressor:
    layer = Compressor(CompressorSpec(window, width, overlaps, ROPE, NormSpec(eps=1e-4)), HIDDEN, "pooled")
    generator = torch.Generator().manual_seed(window)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def defined(layer: Compressor, hidden: torch.Tensor) -> torch.Tensor:
    """The entries of all whole windows of a sequence, (E, D)."""
    spec = layer.spec
    kv, gate = (hidden @ layer.kv_gate_proj.weight.T).chunk(2, 1)
    entries = []
    for number in range(len(hidden) // spec.window):
        first = number * spec.window
        windows = [slice(first, first + spec.window)]
        if spec.overlaps and number:
            windows.insert(0, slice(first - spec.window, first))
        parts = []
        for place, rows in enumerate(windows):
            # The last series is the window's own.
            series = 0 if place < len(windows) - 1 else spec.num_series - 1
            columns = slice(series * spec.width, (series + 1) * spec.width)
            parts.append((gate[rows, columns] + layer.position_bias[:, columns], kv[rows, columns]))
        gates, values = (torch.cat(found) for found in zip(*parts, strict=True))
        pooled = layer.norm((gates.softmax(0) * values).sum(0, keepdim=True))
        entries.append(rotate_last(pooled[:, None], layer.rope.cos_sin(torch.tensor([first])), ROPE)[0])
    return torch.cat(entries) if entries else torch.zeros(0, spec.width)


def new_state(layer: Compressor, slots: int = 80) -> LayerState:
    sizes = {"token": slots, "sequence": 4}
    return {part.name: torch.full((sizes[part.per], *part.shape), 3.0) for part in layer.spec.state("pooled")}


def batch_of(*pieces: tuple[int, int, int]) -> ForwardBatch:
    """(state slot, context, tokens) of each sequence, the lone tokens with a context first; blocks are apart."""
    ids, positions, mapping, chunks, rows = [], [], [], [], 0
    for number, (slot, context, tokens) in enumerate(pieces):
        span = torch.arange(context, context + tokens)
        positions.append(span)
        mapping.append(slot * 20 + span)
        if not (tokens == 1 and context):
            chunks.append(PrefillChunk(rows, rows + tokens, context, number, slot))
        rows += tokens
        ids.append(torch.zeros(tokens, dtype=torch.int64))
    slots = torch.tensor([slot for slot, _, _ in pieces])
    blocks = torch.cat([torch.arange(slot * 5, slot * 5 + 5) for slot in slots.tolist()])
    lengths = torch.tensor([context + tokens for _, context, tokens in pieces])
    attention = AttentionMetadata(
        blocks.int(), torch.arange(len(pieces)) * 5, lengths, torch.tensor([0, *lengths.tolist()]), BLOCK
    )
    return ForwardBatch(
        torch.cat(ids),
        torch.cat(positions),
        torch.cat(mapping),
        slots,
        len(pieces) - len(chunks),
        tuple(chunks),
        attention,
    )


@pytest.mark.parametrize("pieces", [(19,), (1,) * 19, (3, 1, 1, 5, 2, 7), (8, 1, 10), (11, 8)])
@pytest.mark.parametrize(("window", "overlaps"), [(4, True), (4, False), (3, True), (10, False), (25, True), (1, True)])
def test_entries_do_not_depend_on_how_the_tokens_come(window: int, overlaps: bool, pieces: tuple[int, ...]) -> None:
    layer = make(window, overlaps=overlaps)
    hidden = torch.randn(19, HIDDEN, generator=torch.Generator().manual_seed(1))
    state, done = new_state(layer), 0
    for count in pieces:
        batch = batch_of((2, done, count))
        layer.update(hidden[done : done + count], batch, state)
        done += count
        if batch.prefills:
            found = layer.chunk_entries(batch.prefills[0], batch, state)
        else:
            found = layer.decode_entries(batch, state)[0]
        torch.testing.assert_close(found, defined(layer, hidden[:done]), rtol=1e-4, atol=1e-5)


def test_sequences_of_a_step_have_entries_of_their_own() -> None:
    layer, state = make(4, overlaps=True), new_state(make(4, overlaps=True))
    generator = torch.Generator().manual_seed(2)
    texts = {slot: torch.randn(17, HIDDEN, generator=generator) for slot in (1, 2, 3)}
    for slot, count in ((1, 15), (2, 2), (3, 7)):
        layer.update(texts[slot][:count], batch_of((slot, 0, count)), state)
    batch = batch_of((1, 15, 1), (2, 2, 1), (3, 7, 5))
    layer.update(torch.cat((texts[1][15:16], texts[2][2:3], texts[3][7:12])), batch, state)
    first, second = layer.decode_entries(batch, state)
    torch.testing.assert_close(first, defined(layer, texts[1][:16]), rtol=1e-4, atol=1e-5)
    assert first.shape == second.shape and second.isfinite().all(), "the second has no entry yet"
    third = layer.chunk_entries(batch.prefills[0], batch, state)
    torch.testing.assert_close(third, defined(layer, texts[3][:12]), rtol=1e-4, atol=1e-5)


def test_a_token_writes_to_its_own_slots_alone() -> None:
    """What it writes there depends on earlier tokens only, so that sequences with the same beginning can share it."""
    layer, state = make(4, overlaps=True), new_state(make(4, overlaps=True))
    hidden = torch.randn(16, HIDDEN, generator=torch.Generator().manual_seed(3))
    layer.update(hidden[:9], batch_of((1, 0, 9)), state)
    before = {name: tensor.clone() for name, tensor in state.items()}
    layer.update(hidden[9:], batch_of((1, 9, 7)), state)
    changed = (state["pooled_pieces"] != before["pooled_pieces"]).any(1).nonzero().flatten().tolist()
    assert changed == list(range(29, 36))
    for name in ("pooled_newest", "pooled_sums"):
        assert all(torch.equal(state[name][slot], before[name][slot]) for slot in (0, 2, 3))
    assert layer.spec.piece_width == 2, "7 values of an entry by four tokens"


def test_a_new_sequence_starts_with_nothing_of_the_slot() -> None:
    layer, state = make(5, overlaps=True), new_state(make(5, overlaps=True))
    hidden = torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(4))
    layer.update(hidden, batch_of((1, 0, 12)), state)
    batch = batch_of((1, 0, 6))
    layer.update(hidden[6:], batch, state)
    found = layer.chunk_entries(batch.prefills[0], batch, state)
    torch.testing.assert_close(found, defined(layer, hidden[6:]), rtol=1e-4, atol=1e-5)


def test_sums_of_large_gates_stay_finite() -> None:
    gates = torch.tensor([[900.0], [-900.0], [905.0]])
    sums = empty_sums(torch.zeros(1, 3, 1, 1))
    for gate, kv in zip(gates, (1.0, 2.0, 4.0), strict=True):
        token = torch.tensor([[[gate.item()]], [[1.0]], [[kv]]])[None]
        sums = merge(sums, token)
    assert sums.isfinite().all()
    share = torch.tensor(-5.0).exp()
    torch.testing.assert_close((sums[:, 2] / sums[:, 1]).flatten(), ((share + 4) / (share + 1)).view(1))


def test_the_first_series_goes_on_into_the_next_window() -> None:
    sums = torch.arange(12.0).view(1, 3, 2, 2)
    begun = next_window(sums)
    assert torch.equal(begun[:, :, 1], sums[:, :, 0]) and torch.equal(begun[:, :, 0], empty_sums(sums)[:, :, 0])
    assert torch.equal(next_window(sums[:, :, :1]), empty_sums(sums[:, :, :1]))
