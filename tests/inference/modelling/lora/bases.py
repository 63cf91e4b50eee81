"""Specs of small bases for the plans of adapters, without weights."""

from __future__ import annotations

from inference.modelling.families.llama import build_spec as build_llama
from inference.modelling.families.mixtral import build_spec as build_mixtral
from inference.modelling.lora.modules import BaseModules
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, mlp, norms, outer, view_of

LAYER = "model.layers.0."


def llama(**config: object) -> BaseModules:
    shapes = outer() | norms(LAYER) | attention(f"{LAYER}self_attn.") | mlp(f"{LAYER}mlp.", 12)
    view = view_of(shapes, {"model_type": "llama", "num_attention_heads": 4} | config)
    return BaseModules(build_llama(view), {name: tuple(shape) for name, shape in shapes.items()}.__getitem__)


def mixtral() -> BaseModules:
    shapes = outer() | norms(LAYER) | attention(f"{LAYER}self_attn.")
    shapes |= experts(f"{LAYER}block_sparse_moe.experts.", names=("w1", "w3", "w2"))
    shapes |= {f"{LAYER}block_sparse_moe.gate.weight": (4, HIDDEN)}
    view = view_of(shapes, {"num_attention_heads": 4, "num_local_experts": 4})
    return BaseModules(build_mixtral(view), {name: tuple(shape) for name, shape in shapes.items()}.__getitem__)
