"""The native form of the attention layer against its definition in PyTorch, for all that a spec can ask for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inference.modelling.backends.native.forms import FORMS
from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.attention import Attention
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec, RopeScaling, RopeSpec
from tests.inference.modelling.contexts import contexts_of

RMS = NormSpec("rms", 1e-6)
GEMMA = NormSpec("rms", 1e-6, offset=1.0)
LONG = RopeScaling("dynamic", factor=2.0)
SPECS = {
    "plain": AttentionSpec(4, 4, 16, 0.3),
    "grouped": AttentionSpec(8, 1, 24, 0.3, rope=RopeSpec(100.0, 24)),
    "three-to-one": AttentionSpec(9, 3, 64, 0.125, rope=RopeSpec(1e4, 64)),
    "odd-width": AttentionSpec(4, 2, 19, 0.3, rope=RopeSpec(100.0, 10)),
    "wide": AttentionSpec(2, 1, 256, 0.06, rope=RopeSpec(1e4, 256), softcap=5.0),
    "partial-interleaved": AttentionSpec(6, 2, 24, 0.3, rope=RopeSpec(100.0, 18, interleaved=True)),
    "interleaved": AttentionSpec(6, 2, 32, 0.3, rope=RopeSpec(100.0, 32, interleaved=True)),
    "length-dependent": AttentionSpec(6, 2, 16, 0.3, rope=RopeSpec(100.0, 16, scaling=LONG, max_position_embeddings=8)),
    "window": AttentionSpec(6, 2, 16, 0.3, rope=RopeSpec(100.0, 16), sliding_window=7),
    "norm-per-head": AttentionSpec(6, 2, 40, 0.2, qk_norm=RMS, rope=RopeSpec(100.0, 40), qkv_bias=True),
    "norm-offset": AttentionSpec(6, 2, 16, 0.3, qk_norm=GEMMA, rope=RopeSpec(100.0, 16), sliding_window=70),
    "norm-weightless": AttentionSpec(6, 2, 16, 0.3, qk_norm=NormSpec(weightless=True), rope=RopeSpec(100.0, 16)),
    "norm-over-all": AttentionSpec(6, 2, 20, 0.3, qk_norm=RMS, qk_norm_per_head=False, rope=RopeSpec(100.0, 20)),
    "layer-norm": AttentionSpec(6, 2, 16, 0.3, qk_norm=NormSpec("layer"), rope=RopeSpec(100.0, 16)),
    "norm-of-each-head": AttentionSpec(
        6, 2, 16, 0.3, qk_norm=NormSpec("layer", has_bias=False), qk_norm_of_each_head=True, rope=RopeSpec(100.0, 16)
    ),
    "norm-after-rope": AttentionSpec(6, 2, 16, 0.3, qk_norm=RMS, qk_norm_after_rope=True, rope=RopeSpec(100.0, 16)),
    "sinks": AttentionSpec(8, 2, 16, 0.3, rope=RopeSpec(100.0, 16), has_sinks=True),
    "sinks-window": AttentionSpec(8, 2, 16, 0.3, rope=RopeSpec(100.0, 16), sliding_window=7, has_sinks=True),
    "layer-norm-over-all": AttentionSpec(6, 2, 16, 0.3, qk_norm=NormSpec("layer"), qk_norm_per_head=False),
}
native_mix = FORMS[Attention]["mix"]
H = 16
DECODES = (1, 9, 70, 300)
CHUNKS = ((5, 0), (1, 80), (66, 3), (130, 200))
"""Tokens in all of the decoding sequences; (new tokens, tokens before) of the chunks."""


def make_layer(spec: AttentionSpec, dtype: torch.dtype) -> Attention:
    layer = Attention(spec, H)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    sinks = layer.sinks
    layer = layer.to(dtype)
    if sinks is not None:
        layer.sinks = nn.Parameter(sinks.detach().float(), requires_grad=False)
    return layer


def make_batch(decodes: tuple[int, ...], chunks: tuple[tuple[int, int], ...]) -> tuple[ForwardBatch, int]:
    """A step and the number of slots of its cache; slot 0 is nobody's."""
    lengths = (*decodes, *(count + context for count, context in chunks))
    slots = 1 + torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(4))
    owned = slots.split(lengths)
    positions = [torch.tensor([length - 1]) for length in decodes]
    positions += [torch.arange(context, context + count) for count, context in chunks]
    row, prefills = len(decodes), []
    for index, (count, context) in enumerate(chunks, len(decodes)):
        prefills.append(PrefillChunk(row, row + count, context, index, index + 1))
        row += count
    batch = ForwardBatch(
        input_ids=torch.zeros(row, dtype=torch.int64),
        positions=torch.cat(positions),
        slot_mapping=torch.cat([own[where] for own, where in zip(owned, positions, strict=True)]),
        state_slots=torch.arange(1, len(lengths) + 1),
        num_decodes=len(decodes),
        prefills=tuple(prefills),
        attention=contexts_of(owned, [len(where) for where in positions]),
    )
    return batch, len(slots) + 1


def make_state(spec: AttentionSpec | MLASpec, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    state = {part.name: torch.randn(rows, *part.shape, generator=generator).to(dtype) for part in spec.state()}
    for tensor in state.values():
        tensor[0] = 0.0  # the reference multiplies the padding's zeros
    return state


def both(spec: AttentionSpec, dtype: torch.dtype, decodes=DECODES, chunks=CHUNKS) -> None:
    layer, (batch, rows) = make_layer(spec, dtype), make_batch(decodes, chunks)
    joint = layer.qkv_proj(torch.randn(batch.num_tokens, H, generator=torch.Generator().manual_seed(6)).to(dtype))
    native, plain = make_state(spec, rows, dtype), make_state(spec, rows, dtype)
    with torch.inference_mode():
        found, wanted = native_mix(layer, joint, batch, native), layer.mix(joint, batch, plain)
    # In bfloat16 the reference rounds between norm and rotation too: an error of 2^-8 for each rounding.
    exact = dtype == torch.float32
    for name, tensor in plain.items():
        torch.testing.assert_close(native[name], tensor, rtol=1e-5 if exact else 2**-6, atol=1e-5 if exact else 2**-7)
    limit = float(wanted.abs().max()) * (1e-5 if exact else 0.03)
    torch.testing.assert_close(found, wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_reference(name, dtype):
    both(SPECS[name], dtype)


@pytest.mark.parametrize("decodes", [(3,), (300,), ()])
def test_steps_of_one_kind(decodes):
    both(SPECS["three-to-one"], torch.float32, decodes, () if decodes else CHUNKS[2:])


def test_a_row_is_the_same_alone_and_in_a_batch():
    spec = SPECS["norm-per-head"]
    layer, (batch, rows) = make_layer(spec, torch.float32), make_batch(DECODES, ())
    joint = torch.randn(len(DECODES), (6 + 4) * 40, generator=torch.Generator().manual_seed(6))
    with torch.inference_mode():
        together = native_mix(layer, joint, batch, make_state(spec, rows, torch.float32))
        for index, length in enumerate(DECODES):
            alone, _ = make_batch((length,), ())
            alone.slot_mapping = batch.slot_mapping[index : index + 1]
            alone.attention = batch.attention.part(index, index + 1)
            row = native_mix(layer, joint[index : index + 1], alone, make_state(spec, rows, torch.float32))
            assert torch.equal(row[0], together[index])


@pytest.mark.parametrize("slot", [-1, 10**9])
def test_no_row_is_written_outside_the_cache(slot):
    spec = SPECS["plain"]
    layer, (batch, rows) = make_layer(spec, torch.float32), make_batch((9,), ())
    batch.slot_mapping = torch.tensor([slot])
    with pytest.raises(IndexError, match=f"slot {slot}"):
        native_mix(layer, torch.zeros(1, 12 * 16), batch, make_state(spec, rows, torch.float32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"joint": torch.zeros(1, 12 * 16 + 1)},
        {"joint": torch.zeros(1, 8 * 16)},
        {"joint": torch.zeros(2, 12 * 16)},
        {"joint": torch.zeros(1, 12 * 16, dtype=torch.bfloat16)},
        {"value": torch.zeros(10, 4, 8)},
        {"value": torch.zeros(9, 4, 16)},
        {"slot_mapping": torch.zeros(1, dtype=torch.int32)},
        {"sinks": torch.zeros(3)},
        {"cos": None},
        {"cos": torch.zeros(2, 1, 8)},
        {"cos": torch.zeros(1, 1, 18), "sin": torch.zeros(1, 1, 18)},
        {"cos": torch.zeros(1, 1, 7), "sin": torch.zeros(1, 1, 7)},
        {"q_norm": torch.zeros(15)},
        {"q_norm": torch.zeros(16), "norm_over": 0},
        {"norm_over": 3},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    given = {
        "joint": torch.zeros(1, 12 * 16),
        "key": torch.zeros(10, 4, 16),
        "value": torch.zeros(10, 4, 16),
        "slot_mapping": torch.tensor([3]),
        "blocks": torch.tensor([3], dtype=torch.int32),
        "starts": torch.tensor([0]),
        "lengths": torch.tensor([1]),
        "first_rows": torch.tensor([0, 1]),
        "block_size": 1,
        "cos": torch.zeros(1, 1, 8),
        "sin": torch.zeros(1, 1, 8),
        "interleaved": False,
        "q_norm": None,
        "k_norm": None,
        "norm_over": 1,
        "eps": 1e-6,
        "offset": 0.0,
        "scale": 1.0,
        "window": 0,
        "softcap": 0.0,
        "sinks": None,
    }
    torch.ops.blazr.gqa_attention(*given.values())
    with pytest.raises(RuntimeError, match=r"attention|rotation|norm"):
        torch.ops.blazr.gqa_attention(*(given | wrong).values())
