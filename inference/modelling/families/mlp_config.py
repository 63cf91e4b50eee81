"""Build the spec of a dense MLP, and the sources of its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size
from inference.modelling.families.headers import matrix_shape
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor


@dataclass(frozen=True, slots=True)
class MLPNames:
    """How a family calls the matrices of an MLP.

    Attributes:
        is_transposed: They are stored inputs first, as in GPT-2.
        width_key: What config.json calls the width.
    """

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "gate_up_proj"
    is_transposed: bool = False
    width_key: str = "intermediate_size"


USUAL_MLP = MLPNames()


def mlp_spec(
    view: CheckpointView,
    layer: str,
    activation_name: str,
    *,
    mlp: str = "mlp.",
    gated: bool = True,
    names: MLPNames = USUAL_MLP,
) -> MLPSpec:
    """Width from the columns of the last matrix, biases by presence."""
    down = f"{layer}{mlp}{names.down}"
    width = matrix_shape(view.tensors, down + ".weight")[0 if names.is_transposed else 1]
    check_size(view, width, f"{'rows' if names.is_transposed else 'columns'} of {down}.weight", names.width_key)
    return MLPSpec(width, activation_name, gated, bias=down + ".bias" in view.tensors)


def mlp_sources(
    view: CheckpointView, spec: MLPSpec, layer: str, *, mlp: str = "mlp.", names: MLPNames = USUAL_MLP
) -> dict[str, Source]:
    """Sources of an ``MLPSpec``'s parameters: separate or fused gate and up."""
    base = layer + mlp
    sources: dict[str, Source] = {}
    kinds = ("weight", "bias") if spec.bias else ("weight",)
    for kind in kinds:
        if not spec.gated:
            sources[f"up_proj.{kind}"] = _stored(f"{base}{names.up}.{kind}", names)
        elif f"{base}{names.gate_up}.{kind}" in view.tensors:
            sources[f"gate_up_proj.{kind}"] = tensor(f"{base}{names.gate_up}.{kind}")
        else:
            sources[f"gate_up_proj.{kind}"] = concatenated(f"{base}{names.gate}.{kind}", f"{base}{names.up}.{kind}")
        sources[f"down_proj.{kind}"] = _stored(f"{base}{names.down}.{kind}", names)
    if spec.activation == "xielu":
        sources["alphas"] = concatenated(f"{base}act_fn.alpha_p", f"{base}act_fn.alpha_n")
    return sources


def _stored(name: str, names: MLPNames) -> Source:
    return Source((Piece(name, transpose=names.is_transposed and name.endswith(".weight")),))
