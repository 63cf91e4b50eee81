"""N-grams: rows of the table by the definition, ends of texts, and the same in pieces."""

from __future__ import annotations

import pytest
import torch

from inference.errors import CorruptCheckpoint
from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.ngram import NGramHash, NGramLayer
from inference.modelling.specs.ngram import NGramSpec
from inference.modelling.specs.parts import NormSpec

EOS, HIDDEN, SLOT = 3, 6, 2
SPEC = NGramSpec(
    hidden_size=HIDDEN, num_streams=2, order=3, heads_per_order=2, head_dim=4, rows=60, conv_kernel=2,
    eos_token_id=EOS, norm=NormSpec(eps=1e-6),
)  # fmt: skip
MULTIPLIERS, SIZES, OFFSETS = (2**61 + 7, 2**60 + 3, 2**59 + 1), (7, 11, 13, 17), (0, 7, 18, 31)


def make_hash() -> NGramHash:
    layer = NGramHash(SPEC)
    for name, values in (("multipliers", MULTIPLIERS), ("sizes", SIZES), ("offsets", OFFSETS)):
        getattr(layer, name).data = torch.tensor(values)
    return layer


def wrapped(value: int) -> int:
    """As int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63


def defined(tokens: list[int], at: int) -> list[int]:
    """Rows of the n-grams that end at a position."""
    back = [tokens[at]]
    for place in range(1, SPEC.order):
        before = tokens[max(at - place, 0) : at]
        back.append(EOS if at < place or EOS in before else tokens[at - place])
    rows, mixed = [], wrapped(back[0] * MULTIPLIERS[0])
    for place in range(1, SPEC.order):
        mixed ^= wrapped(back[place] * MULTIPLIERS[place])
        first = (place - 1) * SPEC.heads_per_order
        rows += [mixed % SIZES[head] + OFFSETS[head] for head in range(first, first + SPEC.heads_per_order)]
    return rows


def make_layer() -> NGramLayer:
    layer = NGramLayer(SPEC)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        if parameter.is_floating_point():
            parameter.data = torch.randn(parameter.shape, generator=generator)
    layer.hash = make_hash()
    return layer


def run(layer: NGramLayer, tokens: torch.Tensor, streams: torch.Tensor, pieces: tuple[int, ...]) -> torch.Tensor:
    state = {part.name: torch.full((4, *part.shape), 7.0) for part in SPEC.state()}
    done, parts = 0, []
    for count in pieces:
        ids, decodes = tokens[done : done + count], int(count == 1 and done > 0)
        chunk = PrefillChunk(0, count, done, 0, SLOT)
        batch = ForwardBatch(ids, ids, ids, torch.tensor([SLOT]), decodes, () if decodes else (chunk,))
        parts.append(layer(streams[done : done + count], batch, state))
        done += count
    assert all((part[[0, 1, 3]] == 7.0).all() for part in state.values()), "another sequence's state was written"
    return torch.cat(parts)


def test_rows_are_those_of_the_definition() -> None:
    tokens = [5, 9, EOS, 4, 8, 8, EOS, EOS, 1, 2]
    padded = torch.tensor([EOS, EOS, *tokens]).unfold(0, 3, 1)
    assert make_hash()(padded).tolist() == [defined(tokens, at) for at in range(len(tokens))]


@pytest.mark.parametrize("pieces", [(1, 1, 7), (4, 1, 1, 3), (2, 7)])
def test_pieces_give_what_the_whole_gives(pieces: tuple[int, ...]) -> None:
    layer, tokens = make_layer(), torch.tensor([5, 9, EOS, 4, 8, 8, 1, 1, 2])
    streams = torch.randn(9, 2, HIDDEN, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(run(layer, tokens, streams, pieces), run(layer, tokens, streams, (9,)))


@pytest.mark.parametrize(("name", "value"), [("sizes", 31), ("offsets", -1), ("sizes", 0)])
def test_parts_that_are_not_in_the_table_are_refused(name: str, value: int) -> None:
    layer = make_hash()
    layer.check_values("hash")
    getattr(layer, name)[3] = value
    with pytest.raises(CorruptCheckpoint, match="ngram_heads_offsets"):
        layer.check_values("hash")
