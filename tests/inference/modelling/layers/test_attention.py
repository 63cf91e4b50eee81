"""The two paths of attention against loops over heads and positions, and what a batch may not change."""

from __future__ import annotations

import math

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.attention import Attention, attend, chunk_bias
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from tests.inference.modelling.contexts import contexts_of

H = 24


def plain_attention(query, key, value, *, scale, visible, softcap=None):
    """(n, H, P), (m, V, P), (m, V, P), visible (n, m) to (n, H, P), in float64."""
    result = torch.zeros(*query.shape[:2], value.shape[-1], dtype=torch.float64)
    share = query.shape[1] // key.shape[1]
    for row in range(query.shape[0]):
        for head in range(query.shape[1]):
            columns = visible[row].nonzero()[:, 0].tolist()
            scores = []
            for column in columns:
                score = float(query[row, head].double() @ key[column, head // share].double()) * scale
                scores.append(score if softcap is None else softcap * math.tanh(score / softcap))
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            result[row, head] = weights @ value[columns, head // share].double()
    return result


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_attend_is_the_plain_sum(softcap, heads, kv_heads, causal):
    generator = torch.Generator().manual_seed(0)
    count, total = 5, 5 if causal else 9
    query = 2 * torch.randn(count, heads, 8, generator=generator)
    key, value = (2 * torch.randn(total, kv_heads, 8, generator=generator) for _ in range(2))
    visible = torch.ones(count, total).tril(0) > 0 if causal else torch.rand(count, total, generator=generator) > 0.5
    visible[:, 0] = True
    mask = None if causal else torch.zeros(count, total).masked_fill(~visible, -torch.inf)
    found = attend(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        scale=0.3,
        mask=mask,
        softcap=softcap,
        causal=causal,
    )[0].transpose(0, 1)
    wanted = plain_attention(query, key, value, scale=0.3, visible=visible, softcap=softcap)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


SPECS = {
    "plain": AttentionSpec(6, 2, 8, 0.4),
    "rope-window": AttentionSpec(6, 2, 8, 0.4, rope=RopeSpec(100.0, 8), sliding_window=3),
    "softcap-bias": AttentionSpec(6, 3, 8, 0.4, softcap=1.0, qkv_bias=True, o_bias=True),
    "qk-norm-per-head": AttentionSpec(4, 4, 8, 0.4, qk_norm=NormSpec(), rope=RopeSpec(100.0, 4)),
    "qk-norm-over-all": AttentionSpec(6, 2, 8, 0.4, qk_norm=NormSpec(), qk_norm_per_head=False, sliding_window=4),
}


def make_layer(spec: AttentionSpec, dtype: torch.dtype = torch.float32) -> Attention:
    layer = Attention(spec, H)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(H)
    return layer.to(dtype)


def make_state(spec: AttentionSpec, rows: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {part.name: torch.full((rows, *part.shape), 9.0, dtype=dtype) for part in spec.state()}


def prefill(slots: torch.Tensor, context: int, count: int) -> ForwardBatch:
    total = slots[: context + count]
    return ForwardBatch(
        input_ids=torch.zeros(count, dtype=torch.int64),
        positions=torch.arange(context, context + count),
        slot_mapping=total[context:],
        state_slots=torch.tensor([1]),
        num_decodes=0,
        prefills=(PrefillChunk(0, count, context, 0, 1),),
        attention=contexts_of([total], (count,)),
    )


def decode(rows: list[torch.Tensor]) -> ForwardBatch:
    """Each entry: the slots of one sequence, its new token's last."""
    return ForwardBatch(
        input_ids=torch.zeros(len(rows), dtype=torch.int64),
        positions=torch.tensor([len(row) - 1 for row in rows]),
        slot_mapping=torch.stack([row[-1] for row in rows]),
        state_slots=torch.arange(1, len(rows) + 1),
        num_decodes=len(rows),
        prefills=(),
        attention=contexts_of(rows, [1] * len(rows)),
    )


@pytest.mark.parametrize("name", SPECS)
def test_decoding_gives_what_prefill_gives(name):
    spec = SPECS[name]
    layer = make_layer(spec)
    generator = torch.Generator().manual_seed(1)
    lengths = (9, 4, 1 + 5)
    slots = list((1 + torch.randperm(40, generator=generator)).split([20, 10, 10]))
    hidden = [torch.randn(length, H, generator=generator) for length in lengths]
    state = make_state(spec, 41)
    whole = []
    with torch.inference_mode():
        for rows, values in zip(slots, hidden, strict=True):
            whole.append(layer(values, prefill(rows, 0, len(values)), make_state(spec, 41))[-1])
            layer(values[:-1], prefill(rows, 0, len(values) - 1), state)
        used = [rows[:length] for rows, length in zip(slots, lengths, strict=True)]
        together = layer(torch.stack([values[-1] for values in hidden]), decode(used), state)
    torch.testing.assert_close(together, torch.stack(whole), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("pieces", [(3, 8), (1, 1, 9), (5, 1, 5)])
def test_chunks_give_what_the_whole_gives(name, pieces):
    spec = SPECS[name]
    layer = make_layer(spec)
    generator = torch.Generator().manual_seed(1)
    slots = 1 + torch.randperm(20, generator=generator)
    hidden = torch.randn(11, H, generator=generator)
    state, done, parts = make_state(spec, 21), 0, []
    with torch.inference_mode():
        whole = layer(hidden, prefill(slots, 0, 11), make_state(spec, 21))
        for count in pieces:
            parts.append(layer(hidden[done : done + count], prefill(slots, done, count), state))
            done += count
    # The outputs reach 11; float32 sums in another order (with more threads) differ by about 1e-6 of that.
    torch.testing.assert_close(torch.cat(parts), whole, rtol=2e-6, atol=1e-5)


def test_padding_reads_scratch_and_no_freed_block():
    """A freed block may hold NaN of a failed request, and a masked weight of 0 times NaN is NaN."""
    spec, size = SPECS["plain"], 4
    layer = make_layer(spec)
    slots = [torch.tensor([8, 9, 10, 11, 20, 21, 22, 23, 4]), torch.tensor([16, 17])]
    state = {name: torch.full_like(tensor, torch.nan) for name, tensor in make_state(spec, 28).items()}
    for tensor in state.values():
        tensor[0] = 0.0
        tensor[torch.cat(slots)] = torch.randn(11, *tensor.shape[1:])
    together, alone = decode(slots), [decode([own]) for own in slots]
    together.attention = contexts_of(slots, (1, 1), size)
    hidden = torch.randn(2, H)
    with torch.inference_mode():
        found = layer(hidden, together, state)
        rows = [layer(hidden[row : row + 1], batch, state)[0] for row, batch in enumerate(alone)]
    torch.testing.assert_close(found, torch.stack(rows), rtol=0, atol=1e-5)


def test_keys_are_stored_rotated_and_nothing_else_is_touched():
    spec = SPECS["rope-window"]
    layer = make_layer(spec)
    state = make_state(spec, 21)
    slots = torch.tensor([5, 3, 17])
    with torch.inference_mode():
        layer(torch.randn(3, H), prefill(slots, 0, 3), state)
    for tensor in state.values():
        untouched = torch.ones(21, dtype=torch.bool)
        untouched[slots] = False
        assert (tensor[untouched] == 9.0).all()
        assert (tensor[slots] != 9.0).all()


@pytest.mark.parametrize("name", SPECS)
def test_bfloat16_stays_close_to_float32(name):
    spec = SPECS[name]
    exact, rounded = make_layer(spec), make_layer(spec, torch.bfloat16)
    hidden = torch.randn(8, H, generator=torch.Generator().manual_seed(1)).bfloat16()
    slots = torch.arange(1, 10)
    low, high = make_state(spec, 12, torch.bfloat16), make_state(spec, 12)
    with torch.inference_mode():
        for batch, rows in ((prefill(slots, 0, 7), slice(0, 7)), (decode([slots[:8]]), slice(7, 8))):
            found = rounded(hidden[rows], batch, low)
            batch.shared.clear()
            wanted = exact(hidden[rows].float(), batch, high)
            assert found.dtype == torch.bfloat16
            # bfloat16 has 8 bits: a relative error of 2^-8 per rounding, a few of them in a row.
            torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("context", "first"), [(0, 0), (4, 0), (4, 2)])
def test_runs_see_themselves_both_ways(window, context, first):
    """Rows of a run see all of it within the window; other rows what is before them."""
    spans, length = ((5, 9), (10, 12)), 13
    chunk = PrefillChunk(0, length - context, context, 0, 1, spans)
    batch = ForwardBatch(*(torch.zeros(length - context, dtype=torch.int64),) * 3, torch.zeros(1), 0, (chunk,))
    seen = chunk_bias(batch, chunk, first, window, torch.float32) == 0
    for row in range(context, length):
        for column in range(first, length):
            together = any(start <= row < stop and start <= column < stop for start, stop in spans)
            expected = (column <= row or together) and (window is None or column > row - window)
            assert bool(seen[row - context, column - first]) == expected, (row, column)


def test_without_columns_sinks_take_all():
    """As in the steps that warm a device up."""
    empty = torch.zeros(2, 1, 0, 4)
    found = attend(torch.ones(2, 1, 3, 4), empty, empty, scale=1.0, mask=None, sinks=torch.ones(1, 3))
    assert torch.equal(found, torch.zeros(2, 1, 3, 4))
