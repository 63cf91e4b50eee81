"""TokenMixtureOfExperts: the table chooses, the router weighs, gates are cut, and a damaged table is refused."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inference.errors import CorruptCheckpoint
from inference.modelling.layers.token_moe import TokenMixtureOfExperts
from inference.modelling.specs.token_moe import TokenMoESpec

HIDDEN, VOCAB, ROWS = 8, 12, 7
SPEC = TokenMoESpec(
    5, 2, 4, scoring="sqrt_softplus", normalise_eps=1e-20, routed_scaling_factor=1.5, shared_intermediate_size=6,
    activation_limit=0.4, limits_shared=True, vocab_size=VOCAB,
)  # fmt: skip


def make() -> TokenMixtureOfExperts:
    layer, generator = TokenMixtureOfExperts(SPEC, HIDDEN), torch.Generator().manual_seed(1)
    for name, parameter in layer.named_parameters():
        if name == "token_experts":
            parameter.data = torch.randint(0, 5, parameter.shape, generator=generator)
        else:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def cut(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate.clamp(max=0.4)) * up.clamp(-0.4, 0.4)


def test_the_token_chooses_and_the_router_weighs() -> None:
    layer, generator = make(), torch.Generator().manual_seed(2)
    hidden, ids = torch.randn(ROWS, HIDDEN, generator=generator), torch.tensor([3, 3, 0, 11, 7, 1, 5])
    found = layer(hidden, ids)
    assert layer.shared_expert is not None
    for row, token in enumerate(ids.tolist()):
        scores = functional.softplus(layer.router.weight @ hidden[row]).sqrt()
        chosen = layer.token_experts[token].tolist()
        weights = scores[chosen] / scores[chosen].sum() * 1.5
        parts = [layer.experts.down_proj[one] @ cut(layer.experts.gate_up_proj[one] @ hidden[row]) for one in chosen]
        shared = layer.shared_expert.down_proj.weight @ cut(layer.shared_expert.gate_up_proj.weight @ hidden[row])
        expected = (weights[:, None] * torch.stack(parts)).sum(0) + shared
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)


def test_its_parameters_are_those_of_the_spec_and_the_table_is_whole_numbers() -> None:
    layer = make()
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == SPEC.parameter_shapes(HIDDEN)
    assert SPEC.integer_parameters() == tuple(layer.integer_parameters) == ("token_experts",)


@pytest.mark.parametrize("number", [-1, 5])
def test_experts_that_are_not_there_are_refused(number: int) -> None:
    layer = make()
    layer.check_values("layers.0.channel_mixer")
    layer.token_experts[4, 1] = number
    with pytest.raises(CorruptCheckpoint, match=r"tid2eid\) has numbers from .*there are 5 experts"):
        layer.check_values("layers.0.channel_mixer")
