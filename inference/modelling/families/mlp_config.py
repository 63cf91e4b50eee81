"""Build the spec of a dense MLP, and the sources of its parameters."""

from __future__ import annotations

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size
from inference.modelling.families.headers import matrix_shape
from inference.modelling.layer_specs import MLPSpec
from inference.modelling.spec import Source, concatenated, tensor


def mlp_spec(
    view: CheckpointView, layer: str, activation_name: str, *, mlp: str = "mlp.", gated: bool = True
) -> MLPSpec:
    """Width from ``down_proj``'s columns, biases by presence."""
    base = layer + mlp
    width = matrix_shape(view.tensors, base + "down_proj.weight")[1]
    check_size(view, width, f"columns of {base}down_proj.weight", "intermediate_size")
    return MLPSpec(width, activation_name, gated, bias=base + "down_proj.bias" in view.tensors)


def mlp_sources(view: CheckpointView, spec: MLPSpec, layer: str, *, mlp: str = "mlp.") -> dict[str, Source]:
    """Sources of an ``MLPSpec``'s parameters: separate or fused gate and up."""
    base = layer + mlp
    sources: dict[str, Source] = {}
    kinds = ("weight", "bias") if spec.bias else ("weight",)
    for kind in kinds:
        if not spec.gated:
            sources[f"up_proj.{kind}"] = tensor(f"{base}up_proj.{kind}")
        elif f"{base}gate_up_proj.{kind}" in view.tensors:
            sources[f"gate_up_proj.{kind}"] = tensor(f"{base}gate_up_proj.{kind}")
        else:
            sources[f"gate_up_proj.{kind}"] = concatenated(f"{base}gate_proj.{kind}", f"{base}up_proj.{kind}")
        sources[f"down_proj.{kind}"] = tensor(f"{base}down_proj.{kind}")
    return sources
