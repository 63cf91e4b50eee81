"""Mixtral: Mistral's attention, eight experts of which two are chosen.

Three forms of the experts are read: ``block_sparse_moe.experts.E.w1/w3/w2`` (the published files),
``mlp.experts.gate_up_proj`` stacked out × in (transformers 5), and
``block_sparse_moe.experts.gate_proj.weight`` stacked in × out.

Source: https://arxiv.org/abs/2401.04088.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import EXPERTS, WITH_ROPE, Table, used
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.moe_config import (
    ExpertNames,
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
)
from inference.modelling.families.windows import sliding_window
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.sources import Piece, Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "mixtral": {**WITH_ROPE, **EXPERTS, **used("sliding_window")},
}  # fmt: skip

EXPERT_NAMES = ExpertNames(gate="w1", up="w3", down="w2")


def build_spec(view: CheckpointView) -> ModelSpec:
    decoder = AttentionDecoder.read(view)
    act = activation(view)
    top_k = integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2)

    def experts(layer: str) -> ChannelMixer:
        base = f"{layer}block_sparse_moe."
        if f"{base}gate.weight" not in view.tensors:
            base = f"{layer}mlp."
        count, width = _count_experts(view, base)
        check_experts(view, base + "experts.", count, width, ("num_local_experts", "num_experts"), "intermediate_size")
        moe = check_routing(MoESpec(num_experts=count, top_k=top_k, intermediate_size=width, activation=act))
        return moe, _moe_sources(view, moe, base)

    return decoder.spec(
        "mixtral",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(default_theta=1_000_000.0),
        windows=(sliding_window(view),) * decoder.layout.num_layers,
        act=act,
        experts=experts,
        router="",
    )


def _is_stacked_in_out(view: CheckpointView, base: str) -> bool:
    return f"{base}experts.down_proj.weight" in view.tensors


def _count_experts(view: CheckpointView, base: str) -> tuple[int, int]:
    if not _is_stacked_in_out(view, base):
        return count_experts(view, f"{base}experts.", down=EXPERT_NAMES.down)
    name = f"{base}experts.down_proj.weight"
    shape = view.tensors.shape(name)
    if len(shape) != 3:
        raise TensorShapeMismatch(f"{name} has shape {list(shape)}; three axes are needed.", param=name)
    return shape[0], shape[1]


def _moe_sources(view: CheckpointView, spec: MoESpec, base: str) -> dict[str, Source]:
    if not _is_stacked_in_out(view, base):
        return moe_sources(view, spec, base, names=EXPERT_NAMES)

    def matrices(*names: str) -> Source:
        pieces = tuple(Piece(f"{base}experts.{name}.weight", index=-1, transpose=True) for name in names)
        return Source(pieces, spec.num_experts)

    return {
        "router.weight": tensor(f"{base}gate.weight"),
        "experts.gate_up_proj": matrices("gate_proj", "up_proj"),
        "experts.down_proj": matrices("down_proj"),
    }
