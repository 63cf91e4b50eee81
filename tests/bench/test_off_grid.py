"""Moved scales: other weights, the same products."""

from __future__ import annotations

import torch

from bench.off_grid import move_scales

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MIDDLE = 16, 4, 2, 4, 24
SHAPES = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (MIDDLE, HIDDEN),
    "mlp.up_proj": (MIDDLE, HIDDEN),
    "mlp.down_proj": (HIDDEN, MIDDLE),
}


def products(tensors: dict[str, torch.Tensor], hidden: torch.Tensor) -> list[torch.Tensor]:
    """What a layer computes, without the parts that scales don't reach: queries, keys, attention to itself, the MLP."""

    def weight(name: str) -> torch.Tensor:
        return tensors[f"layers.0.{name}.weight"]

    rows = hidden * weight("input_layernorm")
    values = (rows @ weight("self_attn.v_proj").T).view(-1, KV_HEADS, HEAD_DIM)
    attended = values.repeat_interleave(HEADS // KV_HEADS, 1).flatten(1) @ weight("self_attn.o_proj").T
    middle = hidden * weight("post_attention_layernorm")
    gated = (middle @ weight("mlp.gate_proj").T).relu() * (middle @ weight("mlp.up_proj").T)
    queries = [rows @ weight(f"self_attn.{name}_proj").T for name in ("q", "k")]
    return [*queries, attended, gated @ weight("mlp.down_proj").T]


def test_moved_scales_change_every_weight_and_no_product():
    generator = torch.Generator().manual_seed(1)
    before = {f"layers.0.{name}.weight": torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    after = {name: tensor.clone() for name, tensor in before.items()}
    move_scales(after, "layers.0.", HEAD_DIM, generator)
    for name, tensor in after.items():
        assert (tensor / before[name] - 1).abs().max() > 0.1, name
    hidden = torch.randn(5, HIDDEN, generator=generator)
    for expected, found in zip(products(before, hidden), products(after, hidden), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
