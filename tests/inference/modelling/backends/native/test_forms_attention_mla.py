"""The native form of multi-head latent attention against its definition in PyTorch."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.backends.native import forms
from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec, RopeScaling, RopeSpec
from tests.inference.modelling.backends.native.test_forms_attention import CHUNKS, DECODES, H, make_batch, make_state

ROPE, PAIRS = RopeSpec(100.0, 8), RopeSpec(100.0, 8, interleaved=True)
LONG = RopeSpec(100.0, 4, scaling=RopeScaling("dynamic", factor=2.0), max_position_embeddings=8)
NORM = NormSpec("rms", 1e-6)
SPECS = {
    "oxidizr": MLASpec(3, 32, 7, 16, 8, 16, 24**-0.5, ROPE, q_rope_from_hidden=True),
    "deepseek": MLASpec(4, 40, None, 24, 8, 24, 32**-0.5, PAIRS, kv_a_norm=NORM),
    "odd": MLASpec(5, 19, 7, 7, 4, 13, 0.3, LONG, q_a_norm=NORM, kv_a_norm=NormSpec("rms", 1e-6, 1.0), bias=True),
    "wide": MLASpec(7, 200, None, 70, 8, 130, 78**-0.5, PAIRS, kv_a_norm=NormSpec(weightless=True)),
    "layer-norm": MLASpec(2, 16, None, 8, 8, 8, 0.25, ROPE, kv_a_norm=NormSpec("layer")),
    "no-positions": MLASpec(3, 24, None, 16, 8, 12, 0.2, None, kv_a_norm=NORM),
    "one-head": MLASpec(1, 64, None, 16, 8, 16, 0.2, ROPE),
}
native_mix = forms.FORMS[MultiHeadLatentAttention]["mix"]


def make_layer(spec: MLASpec, dtype: torch.dtype) -> MultiHeadLatentAttention:
    layer = MultiHeadLatentAttention(spec, H)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * value.shape[-1] ** -0.5)
    return layer.to(dtype)


def hidden_rows(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, H, generator=torch.Generator().manual_seed(6)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("decodes", "chunks"), [(DECODES, CHUNKS), ((70,), ()), ((9, 300) * 7, ()), ((), CHUNKS[2:])])
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_reference(name, decodes, chunks, dtype):
    layer, (batch, rows) = make_layer(SPECS[name], dtype), make_batch(decodes, chunks)
    hidden = hidden_rows(batch.num_tokens, dtype)
    native, plain = make_state(layer.spec, rows, dtype), make_state(layer.spec, rows, dtype)
    with torch.inference_mode():
        given = *layer.queries(hidden, layer.query_latent(hidden)), layer.kv_a_proj(hidden), batch
        found, wanted = native_mix(layer, *given, native), layer.mix(*given, plain)
    # Each side rounds to bfloat16 at several places, 2^-8 each time.
    exact = dtype == torch.float32
    torch.testing.assert_close(
        native["latent"], plain["latent"], rtol=1e-5 if exact else 2**-6, atol=1e-5 if exact else 2**-7
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(wanted.abs().max()) * (1e-5 if exact else 0.04))


@pytest.mark.parametrize("absorbs", [False, True])
@pytest.mark.parametrize("chunk", [(3, 60), (70, 130), (40, 0)])
@pytest.mark.parametrize("name", SPECS)
def test_both_forms_of_a_chunk_are_the_reference(name, chunk, absorbs, monkeypatch):
    monkeypatch.setattr(forms, "is_absorbed", lambda *_: absorbs)
    layer, (batch, rows) = make_layer(SPECS[name], torch.float32), make_batch((9,), (chunk,))
    hidden = hidden_rows(batch.num_tokens, torch.float32)
    native, plain = (make_state(layer.spec, rows, torch.float32) for _ in range(2))
    with torch.inference_mode():
        given = *layer.queries(hidden, layer.query_latent(hidden)), layer.kv_a_proj(hidden), batch
        found, wanted = native_mix(layer, *given, native), layer.mix(*given, plain)
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(wanted.abs().max()) * 1e-5)


def test_few_tokens_behind_many_are_absorbed():
    spec = MLASpec(16, 512, None, 128, 64, 128, 0.1, ROPE)
    assert forms.is_absorbed(spec, 1, 10)
    assert forms.is_absorbed(spec, 20, 1000)
    assert not forms.is_absorbed(spec, 512, 3584)
    assert not forms.is_absorbed(spec, 20, 0), "its own tokens are all that there is to expand"


def test_a_row_is_the_same_alone_and_in_a_batch():
    layer, lengths = make_layer(SPECS["wide"], torch.float32), (9, 300, 70, 1) * 2
    batch, rows = make_batch(lengths, ())
    q_nope, q_rope = (torch.randn(len(lengths), 7, width) for width in (70, 8))
    state = make_state(layer.spec, rows, torch.float32)
    weights = (layer.k_b_proj.weight, layer.v_b_proj.weight, state["latent"])
    decode = torch.ops.blazr.mla_decode
    together = decode(q_nope, q_rope, *weights, *forms.context_arguments(batch.attention), 0.1)
    for index in range(len(lengths)):
        row = slice(index, index + 1)
        contexts = forms.context_arguments(batch.attention.part(index, index + 1))
        alone = decode(q_nope[row], q_rope[row], *weights, *contexts, 0.1)
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize(
    "wrong",
    [
        {"q_nope": torch.zeros(1, 3, 15)},
        {"q_nope": torch.zeros(2, 3, 16)},
        {"q_nope": torch.zeros(1, 16, 3).transpose(1, 2)},
        {"q_rope": torch.zeros(1, 2, 8)},
        {"k_b": torch.zeros(48, 31)},
        {"k_b": torch.zeros(48, 32, dtype=torch.bfloat16)},
        {"v_b": torch.zeros(47, 32)},
        {"v_b": torch.zeros(32, 48).T},
        {"cache": torch.zeros(10, 8)},
        {"cache": torch.zeros(10, 80)[:, ::2]},
        {"lengths": torch.tensor([2])},
        {"blocks": torch.tensor([10], dtype=torch.int32)},
    ],
)
def test_wrong_arguments_of_a_decode_are_refused(wrong):
    given = {
        "q_nope": torch.zeros(1, 3, 16),
        "q_rope": torch.zeros(1, 3, 8),
        "k_b": torch.zeros(48, 32),
        "v_b": torch.zeros(36, 32),
        "cache": torch.zeros(10, 40),
        "blocks": torch.tensor([3], dtype=torch.int32),
        "starts": torch.tensor([0]),
        "lengths": torch.tensor([1]),
        "first_rows": torch.tensor([0, 1]),
        "block_size": 1,
    }
    assert torch.ops.blazr.mla_decode(*given.values(), 1.0).shape == (1, 36)
    with pytest.raises((RuntimeError, IndexError), match="attention"):
        torch.ops.blazr.mla_decode(*(given | wrong).values(), 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"q_rope": torch.zeros(1, 8, 3).transpose(1, 2)},
        {"q_rope": torch.zeros(2, 3, 8)},
        {"rows": torch.zeros(1, 39)},
        {"rows": torch.zeros(1, 40, dtype=torch.bfloat16)},
        {"cache": torch.zeros(10, 8)},
        {"slot_mapping": torch.tensor([10])},
        {"slot_mapping": torch.tensor([-1])},
        {"slot_mapping": torch.tensor([1, 2])},
        {"sin": torch.zeros(1, 1, 6)},
        {"cos": torch.zeros(1, 1, 10), "sin": torch.zeros(1, 1, 10)},
        {"norm": torch.zeros(31)},
    ],
)
def test_wrong_rows_of_the_cache_are_refused(wrong):
    given = {
        "q_rope": torch.zeros(1, 3, 8),
        "rows": torch.zeros(1, 40),
        "cache": torch.zeros(10, 40),
        "slot_mapping": torch.tensor([9]),
        "cos": torch.zeros(1, 1, 8),
        "sin": torch.zeros(1, 1, 8),
        "interleaved": True,
        "norm": torch.zeros(32),
        "normed": True,
    }
    assert torch.ops.blazr.mla_prepare(*given.values(), 1e-6, 0.0).shape == (1, 3, 8)
    with pytest.raises((RuntimeError, IndexError), match=r"attention|rotation|norm"):
        torch.ops.blazr.mla_prepare(*(given | wrong).values(), 1e-6, 0.0)
