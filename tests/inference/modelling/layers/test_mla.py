"""Absorbed decoding and expanded prefill against the definition of MLA, in both spellings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.modelling.layers.mla import MultiHeadLatentAttention
from inference.modelling.layers.rotary import rotary_embedding, rotate
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from tests.inference.modelling.layers.test_attention import decode, prefill

H = 24
ROPE = RopeSpec(100.0, 4)
NORM = NormSpec("rms", 1e-6)
SPECS = {
    "oxidizr": MLASpec(3, 10, 7, 8, 4, 8, 12**-0.5, ROPE, q_rope_from_hidden=True),
    "deepseek-lite": MLASpec(3, 10, None, 8, 4, 6, 12**-0.5, RopeSpec(100.0, 4, interleaved=True), kv_a_norm=NORM),
    "deepseek": MLASpec(
        3,
        10,
        7,
        8,
        4,
        14,
        0.2,
        RopeSpec(100.0, 4, interleaved=True),
        q_a_norm=NORM,
        kv_a_norm=NORM,
        bias=True,
    ),
    "mistral": MLASpec(
        3, 10, 7, 8, 4, 6, 0.2, RopeSpec(100.0, 4, interleaved=True), kv_a_norm=NORM, query_growth=(0.5, 3)
    ),
    "kimi": MLASpec(3, 10, None, 8, 4, 6, 12**-0.5, None, kv_a_norm=NORM),
    "ling": MLASpec(
        3, 10, None, 8, 4, 6, 12**-0.5, RopeSpec(100.0, 4, interleaved=True), kv_a_norm=NORM, head_gate=True
    ),
    "mistral-large": MLASpec(
        3, 10, None, 8, 4, 6, 12**-0.5, RopeSpec(100.0, 4, interleaved=True), kv_a_norm=NORM, has_softmax_scale=True,
        learned_frequencies=True,
    ),
    "mistral-large-without-positions": MLASpec(
        3, 10, None, 12, 0, 6, 12**-0.5, None, kv_a_norm=NORM, has_softmax_scale=True
    ),
    "dots-windowed": MLASpec(
        3, 10, 7, 8, 4, 6, 0.3, RopeSpec(100.0, 4, interleaved=True), q_a_norm=NORM, kv_a_norm=NORM, head_gate=True,
        k_rope_norm=NormSpec("rms", 1e-2), sliding_window=4, latent_multiplier=1.3,
    ),
}  # fmt: skip


def make_layer(spec: MLASpec) -> MultiHeadLatentAttention:
    layer = MultiHeadLatentAttention(spec, H)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.4)
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(H)
    return layer


def defined(layer: MultiHeadLatentAttention, hidden: torch.Tensor) -> torch.Tensor:
    """The layer over one sequence, token by token and head by head, from the parameters alone."""
    spec = layer.spec
    latent, k_rope = layer.kv_a_proj(hidden).split([spec.kv_lora_rank, spec.qk_rope_head_dim], -1)
    if layer.kv_a_norm is not None:
        latent = layer.kv_a_norm(latent) * spec.latent_multiplier
    if layer.k_rope_norm is not None:
        k_rope = k_rope / (k_rope.square().mean(-1, keepdim=True) + 1e-2).sqrt() * layer.k_rope_norm.weight
    if spec.q_lora_rank is None:
        query = layer.q_proj(hidden)
    else:
        query = layer.q_a_proj(hidden)
        query = layer.q_b_proj(query if layer.q_a_norm is None else layer.q_a_norm(query))
    nope, rope = spec.qk_nope_head_dim, spec.qk_rope_head_dim
    if spec.q_rope_from_hidden:
        query = torch.cat(
            (query.view(-1, spec.num_heads, nope), layer.q_rope_proj(hidden).view(-1, spec.num_heads, rope)), -1
        )
    query = query.view(-1, spec.num_heads, nope + rope)
    if spec.query_growth is not None:
        slope, length = spec.query_growth
        query = query * (1 + slope * (1 + torch.arange(len(hidden)) // length).log())[:, None, None]
    if spec.has_softmax_scale:
        logarithms = (1 + torch.arange(len(hidden))).log()[:, None]
        query = query * (layer.softmax_scale.scale * logarithms + layer.softmax_scale.bias)[..., None]
    if spec.rope is not None:
        exponents = layer.frequency_exponents
        factors = None if exponents is None else exponents.exp()
        cos_sin = rotary_embedding(spec.rope).cos_sin(torch.arange(len(hidden)), None, factors)
        turn = {"interleaved": spec.rope.interleaved}
        query = torch.cat((query[..., :nope], rotate(query[..., nope:], cos_sin, **turn)), -1)
        k_rope = rotate(k_rope.unsqueeze(1), cos_sin, **turn)[:, 0]
    rows = torch.cat((latent, k_rope), -1)
    firsts = [max(0, t + 1 - (spec.sliding_window or len(hidden))) for t in range(len(hidden))]
    heads = torch.stack([expanded_attention(layer, query[t], rows[first : t + 1]) for t, first in enumerate(firsts)])
    if spec.head_gate:
        heads = heads * layer.head_gate(hidden).sigmoid()[..., None]
    return layer.o_proj(heads.flatten(1))


def expanded_attention(layer: MultiHeadLatentAttention, query: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """One query (H, N + R) over the tokens (m, r + R) that it sees, every head spelled out, to (H, W)."""
    key, value = layer.expand(latent)
    heads = []
    for head in range(layer.spec.num_heads):
        scores = key[:, head].float() @ query[head].float() * layer.spec.scale
        heads.append(scores.softmax(0) @ value[:, head].float())
    return torch.stack(heads).to(latent.dtype)


def make_state(spec: MLASpec, rows: int) -> dict[str, torch.Tensor]:
    return {part.name: torch.full((rows, *part.shape), 9.0) for part in spec.state()}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("pieces", [(11,), (4, 7), (1, 1, 9)])
def test_prefill_is_the_definition(name, pieces):
    layer = make_layer(SPECS[name])
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(11, H, generator=generator)
    slots = 1 + torch.randperm(20, generator=generator)
    state, done, parts = make_state(layer.spec, 21), 0, []
    with torch.inference_mode():
        for count in pieces:
            parts.append(layer(hidden[done : done + count], prefill(slots, done, count), state))
            done += count
        torch.testing.assert_close(torch.cat(parts), defined(layer, hidden), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_absorbed_decoding_is_the_definition(name):
    layer = make_layer(SPECS[name])
    generator = torch.Generator().manual_seed(1)
    lengths = (9, 4, 2)
    slots = list((1 + torch.randperm(40, generator=generator)).split([20, 10, 10]))
    hidden = [torch.randn(length, H, generator=generator) for length in lengths]
    state = make_state(layer.spec, 41)
    with torch.inference_mode():
        for rows, values in zip(slots, hidden, strict=True):
            layer(values[:-1], prefill(rows, 0, len(values) - 1), state)
        used = [rows[:length] for rows, length in zip(slots, lengths, strict=True)]
        found = layer(torch.stack([values[-1] for values in hidden]), decode(used), state)
        wanted = torch.stack([defined(layer, values)[-1] for values in hidden])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["deepseek-lite", "mistral-large", "mistral-large-without-positions"])
def test_a_layer_reads_the_latents_of_another_one(name):
    """With the same weights it gives what the other gives, and writes nothing."""
    spec = SPECS[name]
    owner, reader = make_layer(spec), MultiHeadLatentAttention(replace(spec, kv_source=0), H)
    assert {key: tuple(value.shape) for key, value in reader.named_parameters()} == reader.spec.parameter_shapes(H)
    assert not {"kv_a_proj.weight", "kv_a_norm.weight"} & reader.spec.parameter_shapes(H).keys()
    reader.load_state_dict(owner.state_dict(), strict=False)
    assert reader.spec.state() == () and not reader.is_plain
    hidden = torch.randn(9, H, generator=torch.Generator().manual_seed(1))
    slots, state = torch.tensor([3, 9, 4, 1, 7, 8, 2, 6, 5]), make_state(spec, 12)
    with torch.inference_mode():
        for rows, batch in ((hidden[:6], prefill(slots, 0, 6)), (hidden[6:8], prefill(slots, 6, 2))):
            expected, written = owner(rows, batch, state), state["latent"].clone()
            torch.testing.assert_close(reader(rows, batch, state), expected, rtol=0, atol=1e-5)
            assert torch.equal(state["latent"], written)
        batch = decode([slots])
        expected = owner(hidden[8:], batch, state)
        torch.testing.assert_close(reader(hidden[8:], batch, state), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", [{"sliding_window": 4}, {"k_rope_norm": NORM}, {"learned_frequencies": True}])
def test_no_kernel_takes_what_it_does_not_have(change):
    plain = SPECS["deepseek-lite"]
    assert MultiHeadLatentAttention(plain, H).is_plain
    assert not MultiHeadLatentAttention(replace(plain, **change), H).is_plain


def test_the_cache_holds_the_latent_and_one_rotated_key():
    spec = SPECS["deepseek"]
    assert [part.shape for part in spec.state()] == [(14,)]
    state = make_state(spec, 12)
    with torch.inference_mode():
        make_layer(spec)(torch.randn(3, H), prefill(torch.tensor([7, 2, 4]), 0, 3), state)
    assert (state["latent"] != 9.0).any(-1).nonzero()[:, 0].tolist() == [2, 4, 7]
