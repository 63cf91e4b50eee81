"""Linear attention with fixed decays against its sum over all earlier tokens."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.specs.linear import LightningSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.recurrent_steps import HIDDEN, PIECES, fill, hidden_rows, run_in_pieces


def defined(layer: LightningAttention, hidden: torch.Tensor) -> torch.Tensor:
    """o_t = Σ_{j ≤ t} e^(-s (t - j)) (q_t · k_j) v_j, from the parameters alone."""
    spec = layer.spec
    qkv = torch.nn.functional.silu(layer.in_proj(hidden)).view(-1, 3, spec.num_heads, spec.head_dim)
    query, key, value = qkv.unbind(1)
    slopes = torch.tensor([2 ** (-8 * (head + 1) / spec.num_heads) for head in range(spec.num_heads)])
    ages = torch.arange(len(hidden))[:, None] - torch.arange(len(hidden))
    fade = torch.exp(-slopes[:, None, None] * spec.decay_factor * ages).tril()
    mixed = torch.einsum("hij,jhp->ihp", torch.einsum("ihp,jhp->hij", query, key) * fade, value).flatten(1)
    return layer.out_proj(layer.norm(mixed) * layer.gate_proj(hidden).sigmoid())


@pytest.mark.parametrize("pieces", PIECES)
def test_it_is_the_definition(pieces):
    layer = fill(LightningAttention(LightningSpec(3, 4, 0.6, NormSpec("rms", 1e-6)), HIDDEN))
    with torch.inference_mode():
        torch.testing.assert_close(
            run_in_pieces(layer, hidden_rows(), pieces), defined(layer, hidden_rows()), rtol=1e-4, atol=1e-5
        )
