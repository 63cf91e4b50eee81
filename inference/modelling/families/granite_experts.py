"""Read the experts of Granite's families, and the MLP that every token passes beside them."""

from __future__ import annotations

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size, integer_with_evidence
from inference.modelling.families.headers import matrix_shape, stack_shape
from inference.modelling.families.moe_config import check_experts, check_routing
from inference.modelling.specs.layers import ChannelMixerSpec, MLPSpec, MoESpec
from inference.modelling.specs.parts import prefixed
from inference.modelling.specs.sources import Source, tensor

EXPERT_NAMES = (
    ("router.layer.weight", "input_linear.weight", "output_linear.weight"),
    ("router.weight", "experts.gate_up_proj", "experts.down_proj"),
)
"""Router, stacked gate and up, stacked down: in the published files, and as transformers 5 holds them."""


def granite_mixer(view: CheckpointView, layer: str, act: str) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    """A layer's experts, with the MLP beside them where there is one, or that MLP alone."""
    shared = f"{layer}shared_mlp."
    name = f"{shared}output_linear.weight"
    width = matrix_shape(view.tensors, name)[1] if name in view.tensors else 0
    shared_sources = {
        "gate_up_proj.weight": tensor(f"{shared}input_linear.weight"),
        "down_proj.weight": tensor(f"{shared}output_linear.weight"),
    }
    base = f"{layer}block_sparse_moe."
    names = next((trio for trio in EXPERT_NAMES if base + trio[0] in view.tensors), None)
    check_size(view, width, f"columns of {shared}output_linear.weight", "shared_intermediate_size")
    if names is None:
        check_size(view, 0, f"no experts under {base[:-1]}", "num_local_experts")
        return MLPSpec(width, act), shared_sources
    router, gate_up, down = (base + name for name in names)
    count = matrix_shape(view.tensors, router)[0]
    expert_width = stack_shape(view.tensors, down)[2]
    check_experts(view, base, count, expert_width, ("num_local_experts",), "intermediate_size")
    moe = MoESpec(
        num_experts=count,
        top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2),
        intermediate_size=expert_width,
        activation=act,
        shared_intermediate_size=width,
    )
    moe_sources = {
        "router.weight": tensor(router),
        "experts.gate_up_proj": tensor(gate_up),
        "experts.down_proj": tensor(down),
    }
    return check_routing(moe), moe_sources | (prefixed("shared_expert", shared_sources) if width else {})
