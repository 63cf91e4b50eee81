"""Frequencies of every kind against transformers, rotations against complex numbers, and the length rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.rotary import (
    attention_factor,
    inverse_frequencies,
    rotary_embedding,
    rotate,
    rotate_first,
    rotate_last,
)
from inference.modelling.specs.parts import RopeScaling, RopeSpec
from tests.inference.modelling.contexts import contexts_of
from tests.inference.modelling.harness import SequenceRunner, load_directory
from tests.inference.modelling.huggingface import make_checkpoint

D = 16
KINDS = {
    "linear": RopeScaling("linear", factor=3.0),
    "llama3": RopeScaling("llama3", factor=8.0, original_max_position_embeddings=64),
    "yarn": RopeScaling("yarn", factor=4.0, original_max_position_embeddings=128, beta_fast=8.0),
    "yarn-mscale": RopeScaling(
        "yarn", factor=40.0, original_max_position_embeddings=128, mscale=0.9, mscale_all_dim=0.6
    ),
    "yarn-not-truncated": RopeScaling(
        "yarn", factor=4.0, original_max_position_embeddings=512, truncate=False, attention_factor=1.2
    ),
    "longrope": RopeScaling(
        "longrope",
        factor=8.0,
        original_max_position_embeddings=64,
        short_factor=tuple(1.0 + 0.1 * i for i in range(D // 2)),
        long_factor=tuple(2.0 + i for i in range(D // 2)),
    ),
    "dynamic": RopeScaling("dynamic", factor=2.0),
}


def hf_parameters(spec: RopeSpec, length: int | None) -> tuple[torch.Tensor, float]:
    scaling = spec.scaling
    values = {
        "rope_type": scaling.kind,
        "rope_theta": spec.theta,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all_dim,
        "attention_factor": scaling.attention_factor,
        "truncate": scaling.truncate,
        "short_factor": list(scaling.short_factor),
        "long_factor": list(scaling.long_factor),
    }
    config = LlamaConfig(
        hidden_size=D,
        num_attention_heads=1,
        max_position_embeddings=spec.max_position_embeddings,
        rope_parameters=values,
    )
    return ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu", seq_len=length)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("theta", [500.0, 10000.0])
def test_frequencies_are_those_of_transformers(name, theta):
    spec = RopeSpec(theta, D, scaling=KINDS[name], max_position_embeddings=512)
    wanted, factor = hf_parameters(spec, None)
    torch.testing.assert_close(inverse_frequencies(spec), wanted, rtol=1e-6, atol=0)
    assert attention_factor(spec) == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize(("name", "length"), [("longrope", 65), ("dynamic", 700), ("dynamic", 5000)])
def test_long_sequences_have_their_own_frequencies(name, length):
    spec = RopeSpec(10000.0, D, scaling=KINDS[name], max_position_embeddings=512)
    wanted, factor = hf_parameters(spec, length)
    positions = torch.arange(0, length, 7)
    cos, sin = rotary_embedding(spec).cos_sin(positions, torch.full_like(positions, length))
    angles = positions.unsqueeze(1).float() * wanted
    torch.testing.assert_close(cos[:, 0, : D // 2], angles.cos() * factor, rtol=0, atol=2e-3)
    torch.testing.assert_close(sin[:, 0, D // 2 :], angles.sin() * factor, rtol=0, atol=2e-3)


def test_length_of_a_row_is_its_position_plus_one_unless_the_batch_says_more():
    spec = RopeSpec(10000.0, D, scaling=KINDS["longrope"])
    positions = torch.tensor([63, 64])
    rope = rotary_embedding(spec)
    cos, _ = rope.cos_sin(positions)
    short, long = (rotary_embedding(spec).cos_sin(positions, torch.tensor([n, n]))[0] for n in (64, 65))
    assert torch.equal(cos[0], short[0])
    assert torch.equal(cos[1], long[1])
    assert not torch.equal(short, long)


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_lengths_mean_nothing_to_the_other_kinds(name):
    embedding = rotary_embedding(RopeSpec(10000.0, D, scaling=KINDS[name], max_position_embeddings=64))
    positions = torch.arange(4)
    alone = embedding.cos_sin(positions)
    beside_a_long_sequence = embedding.cos_sin(positions, torch.full((4,), 500))
    for one, other in zip(alone, beside_a_long_sequence, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_is_a_complex_multiplication(interleaved):
    spec = RopeSpec(100.0, D, interleaved=interleaved)
    values = torch.randn(5, 3, D, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 2, 50, 1000])
    rotated = rotate(values, rotary_embedding(spec).cos_sin(positions), interleaved=interleaved)
    angles = positions.double().unsqueeze(1) * 100.0 ** (-torch.arange(0, D, 2).double() / D)
    factor = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    first, second = (values[..., ::2], values[..., 1::2]) if interleaved else values.chunk(2, -1)
    wanted = torch.complex(first.double(), second.double()) * factor
    found = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
    torch.testing.assert_close(found[0].double(), wanted.real, rtol=0, atol=2e-4)
    torch.testing.assert_close(found[1].double(), wanted.imag, rtol=0, atol=2e-4)


def test_values_beyond_the_rotary_part_pass_through():
    spec = RopeSpec(100.0, 6)
    values = torch.randn(4, 2, D)
    cos_sin = rotary_embedding(spec).cos_sin(torch.arange(4))
    result = rotate_first(values, cos_sin, spec)
    assert torch.equal(result[..., 6:], values[..., 6:])
    assert torch.equal(result[..., :6], rotate(values[..., :6], cos_sin, interleaved=False))


def test_bfloat16_is_rotated_in_float32():
    spec = RopeSpec(10000.0, D)
    values = torch.randn(3, 2, D).bfloat16()
    cos_sin = rotary_embedding(spec).cos_sin(torch.tensor([3, 77, 901]))
    result = rotate(values, cos_sin, interleaved=False)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, rotate(values.float(), cos_sin, interleaved=False).bfloat16())


def test_layers_share_the_step_and_equal_specs_share_the_embedding():
    batch = whole_batch(torch.arange(3), 3)
    spec = RopeSpec(10000.0, D)
    assert rotary_embedding(spec).step(batch)[0] is rotary_embedding(replace(spec)).step(batch)[0]


def test_an_embedding_first_made_for_the_meta_device_has_numbers():
    spec = RopeSpec(12345.0, D, scaling=KINDS["yarn"])
    with torch.device("meta"):
        rope = rotary_embedding(spec)
    assert torch.isfinite(rope.cos_sin(torch.arange(3))[0]).all()


def whole_batch(tokens: torch.Tensor, length: int | None) -> ForwardBatch:
    """A fresh chunk of one sequence in slots 1 …, with the length that its rotations are for."""
    count = len(tokens)
    slots = torch.arange(1, count + 1)
    return ForwardBatch(
        input_ids=tokens,
        positions=torch.arange(count),
        slot_mapping=slots,
        state_slots=torch.tensor([1]),
        num_decodes=0,
        prefills=(PrefillChunk(0, count, 0, 0, 1),),
        attention=contexts_of([slots], (count,)),
        rope_lengths=None if length is None else torch.full((count,), length),
    )


BASE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_prompt_beyond_the_trained_context_matches_transformers(kind, tmp_path):
    if kind == "longrope":
        rope = {"rope_type": kind, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
        config = Phi3Config(
            **BASE, max_position_embeddings=256, original_max_position_embeddings=32, rope_parameters=rope
        )
    else:
        rope = {"rope_type": kind, "factor": 3.0, "rope_theta": 500.0}
        config = LlamaConfig(**BASE, max_position_embeddings=32, rope_parameters=rope)
    directory, oracle = make_checkpoint(config, tmp_path)
    network = load_directory(directory)
    assert network.spec.layers[0].token_mixer.rope.depends_on_length
    tokens = torch.randint(0, 99, (50,), generator=torch.Generator().manual_seed(0))
    states = SequenceRunner(network).states
    with torch.inference_mode():
        logits = network.compute_logits(network(whole_batch(tokens, 50), states))
        # Without the length the early rows are computed as those of a short sequence.
        causal = network.compute_logits(network(whole_batch(tokens, None), states))
    wanted = oracle(tokens)
    assert (logits - wanted).abs().max() <= 1e-4
    assert (causal - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_last_values_are_rotated_alone(interleaved):
    rope = rotary_embedding(RopeSpec(100.0, 4, interleaved=interleaved))
    values, positions = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) * 3
    turned = rotate_last(values, (cos_sin := rope.cos_sin(positions)), rope.spec)
    assert torch.equal(turned[..., :2], values[..., :2])
    assert torch.equal(turned[..., 2:], rotate(values[..., 2:], cos_sin, interleaved=interleaved))
    assert torch.equal(rotate_last(values[..., 2:], cos_sin, rope.spec), turned[..., 2:])
    cos, sin = cos_sin
    torch.testing.assert_close(rotate_last(turned, (cos, -sin), rope.spec), values)


def test_a_reversed_rotation_undoes_the_other():
    spec = RopeSpec(100.0, 8)
    values, positions = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5) * 3
    turned = rotate(values, rotary_embedding(spec).cos_sin(positions), interleaved=False)
    back = rotary_embedding(replace(spec, is_reversed=True)).cos_sin(positions)
    torch.testing.assert_close(rotate(turned, back, interleaved=False), values)
