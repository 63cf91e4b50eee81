"""The dense channel mixer against its formula, for every activation."""

from __future__ import annotations

import math

import pytest
import torch

from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS, MLP, activate, limited_product
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import ACTIVATIONS

FORMULAS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}


def test_every_activation_of_a_spec_is_known():
    assert set(ACTIVATION_FUNCTIONS) == set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize("activation", FORMULAS)
def test_activations_are_their_formulas(activation):
    gate, up = torch.linspace(-6, 6, 25), torch.linspace(1, 3, 25)
    wanted = torch.tensor([FORMULAS[activation](value) for value in gate.tolist()])
    torch.testing.assert_close(activate(gate, activation, gated=False), wanted, rtol=1e-5, atol=1e-6)
    found = activate(torch.cat((gate, up)), activation, gated=True)
    torch.testing.assert_close(found, wanted * up, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_layer_is_two_products_around_the_activation(gated, bias):
    spec = MLPSpec(9, "relu2", gated=gated, bias=bias)
    layer = MLP(spec, 5)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == spec.parameter_shapes(5)
    hidden = torch.randn(3, 5, generator=generator)
    first = (layer.gate_up_proj if gated else layer.up_proj)(hidden)
    inner = first[:, :9].relu().square() * (first[:, 9:] if gated else 1.0)
    wanted = inner @ layer.down_proj.weight.T + (layer.down_proj.bias if bias else 0.0)
    torch.testing.assert_close(layer(hidden), wanted)


def test_gate_and_up_are_cut_at_a_limit():
    layer = MLP(MLPSpec(3, "gelu", activation_limit=0.5), 5)
    values = torch.tensor([[-2.0, 0.2, 3.0, -4.0, 0.3, 4.0]])
    gate, up = torch.tensor([[-2.0, 0.2, 0.5]]), torch.tensor([[-0.5, 0.3, 0.5]])
    torch.testing.assert_close(layer.activate(values), torch.nn.functional.gelu(gate) * up)
    assert not layer.is_plain and MLP(MLPSpec(3), 5).is_plain


def test_a_learned_number_multiplies_the_result():
    spec = MLPSpec(9, has_output_scale=True)
    scaled, plain = MLP(spec, 5), MLP(MLPSpec(9), 5)
    generator = torch.Generator().manual_seed(1)
    for parameter in scaled.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    assert {name: tuple(value.shape) for name, value in scaled.named_parameters()} == spec.parameter_shapes(5)
    plain.load_state_dict(scaled.state_dict(), strict=False)
    hidden = torch.randn(3, 5, generator=generator)
    torch.testing.assert_close(scaled(hidden), plain(hidden) * scaled.output_scale)


def test_xielu_is_its_formula_with_its_own_numbers():
    layer = MLP(MLPSpec(25, "xielu", gated=False), 5)
    assert layer.alphas is not None
    layer.alphas.copy_(torch.tensor([0.3, -0.7]))
    positive, negative = (math.log1p(math.exp(alpha)) for alpha in (0.3, -0.7))
    values = torch.linspace(-6, 6, 25)
    wanted = [
        positive * x * x + 0.5 * x if x > 0 else (math.expm1(min(x, -1e-6)) - x) * (0.5 + negative) + 0.5 * x
        for x in values.tolist()
    ]
    torch.testing.assert_close(layer.activate(values), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    assert layer.activate(values.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_limited_product_cuts_the_gate_behind_its_activation(activation):
    gate, up = torch.linspace(-6, 6, 25), torch.linspace(-3, 3, 25)
    pairs = zip(gate.tolist(), up.tolist(), strict=True)
    expected = [min(FORMULAS[activation](left), 0.7) * max(-0.7, min(right, 0.7)) for left, right in pairs]
    found = limited_product(gate, up, activation, 0.7)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    layer = MLP(MLPSpec(25, activation, post_activation_limit=0.7), 4)
    assert not layer.is_plain
    torch.testing.assert_close(layer.activate(torch.cat((gate, up)).unsqueeze(0))[0], found)
