"""What the recurrent layers promise beyond parity: precision of the state, whose slots they touch, one way for all."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.recurrent import GatedNorm
from inference.modelling.specs.parts import NormSpec
from inference.modelling.weights.loader import load_network
from tests.inference.modelling import reference_oxidizr as reference
from tests.inference.modelling.harness import SequenceRunner, load_directory
from tests.inference.modelling.reference_oxidizr import OxidizrConfig

KINDS = {
    "mamba1": OxidizrConfig(("mamba1", "mamba1")),
    "mamba2": OxidizrConfig(("mamba2", "mamba2"), groups=2),
    "mamba3": OxidizrConfig(("mamba3", "mamba3"), mimo_rank=2, use_conv=True),
}
KEPT_FLOAT32 = ("A_log", "D", "dt_bias", "b_bias", "c_bias", "conv1d.weight", "conv1d.bias", "dt_proj.bias")
TOKENS = [(7 * number) % 80 for number in range(50)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def network(kind, tmp_path):
    reference.write_checkpoint(tmp_path, KINDS[kind], reference.random_weights(KINDS[kind]))
    return load_directory(tmp_path, model_type="oxidizr")


@pytest.fixture
def bfloat16_network(network, tmp_path):
    return load_network(network.spec, [tmp_path / "model.safetensors"], dtype=torch.bfloat16)


def test_recurrence_parameters_stay_float32_under_bfloat16_weights(bfloat16_network):
    mixer = bfloat16_network.layers[0].token_mixer
    for name, parameter in mixer.named_parameters():
        kept = name in KEPT_FLOAT32 or name == "norm.weight"
        assert parameter.dtype == (torch.float32 if kept else torch.bfloat16), name


def test_states_are_float32_and_outputs_close_under_bfloat16_weights(kind, network, bfloat16_network):
    wanted = SequenceRunner(network).run("a", TOKENS, 50)
    runner = SequenceRunner(bfloat16_network)
    found = runner.run("a", TOKENS, 50)
    for state in runner.states:
        for name, values in state.items():
            assert values.dtype == torch.float32, name
    # Two layers and a head of bfloat16 products (8 bits) on logits of standard deviation 1; oxidizr's Mamba-1
    # state grows until its clamp, and roundings with it.
    assert (found - wanted).abs().mean() < (0.3 if kind == "mamba1" else 0.05)


def test_decoding_in_bfloat16_follows_the_prefill(bfloat16_network):
    """Rounding the state at each step would drift; float32 states don't, so 50 steps end where a prefill does."""
    prefilled, decoded = SequenceRunner(bfloat16_network), SequenceRunner(bfloat16_network)
    prefilled.run("a", TOKENS, 50)
    decoded.run("a", TOKENS, 1)
    slot = prefilled.sequences["a"].state_slot
    assert decoded.sequences["a"].state_slot == slot
    # The first layer's input is the same in both, bit for bit; what differs is the order of the recurrence's sums.
    for name, values in prefilled.states[0].items():
        torch.testing.assert_close(decoded.states[0][name][slot], values[slot], rtol=2e-3, atol=2e-3)


def test_only_the_slots_of_the_batch_are_written(network):
    runner = SequenceRunner(network)
    runner.run("a", TOKENS[:9], 9)
    runner.step([("a", [3]), ("b", TOKENS[:5]), ("c", [4])])
    runner.step([("a", [3]), ("b", [5])])
    used = {sequence.state_slot for sequence in runner.sequences.values()}
    for state in runner.states:
        for values in state.values():
            for slot in range(values.shape[0]):
                assert (slot in used) != bool((values[slot] == 7.0).all())


def test_a_sequence_in_a_batch_computes_what_it_computes_alone(network):
    """The other rows of a decode step don't reach a sequence's numbers (beyond rounding)."""
    texts = {name: [(11 * number + offset) % 80 for number in range(12)] for offset, name in enumerate("abcde")}
    together, alone = SequenceRunner(network), {name: SequenceRunner(network) for name in texts}
    for name, tokens in texts.items():
        together.run(name, tokens[:6], 6)
        alone[name].run(name, tokens[:6], 6)
    for step in range(6, 12):
        batched = together.step([(name, [tokens[step]]) for name, tokens in texts.items()])
        for name, tokens in texts.items():
            single = alone[name].step([(name, [tokens[step]])])[name]
            torch.testing.assert_close(batched[name], single, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("group_size", [4, 12])
def test_gated_norm(group_size, norm_before_gate):
    generator = torch.Generator().manual_seed(0)
    values, gate = torch.randn(3, 12, generator=generator), torch.randn(3, 12, generator=generator)
    norm = GatedNorm(NormSpec("rms", 1e-3), 12, group_size, norm_before_gate=norm_before_gate)
    weight = torch.rand(12, generator=generator)
    norm.weight.copy_(weight)
    factor = gate * gate.sigmoid()
    wanted = torch.empty_like(values)
    for row in range(3):
        for start in range(0, 12, group_size):
            part = slice(start, start + group_size)
            inner = values[row, part] if norm_before_gate else values[row, part] * factor[row, part]
            inner = inner / (inner.pow(2).mean() + 1e-3).sqrt() * weight[part]
            wanted[row, part] = inner * factor[row, part] if norm_before_gate else inner
    torch.testing.assert_close(norm(values, gate), wanted)


def test_gated_norm_without_norm_is_the_gate_alone():
    values, gate = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 3.0]])
    torch.testing.assert_close(GatedNorm(None, 2, 2)(values, gate), values * gate * gate.sigmoid())
