"""Read the inputs that each layer has of its own: their table and projection, and each layer's use of them."""

from __future__ import annotations

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size
from inference.modelling.families.decoder import norm_sources
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.headers import matrix_shape
from inference.modelling.specs.layer_inputs import LayerInputSpec, LayerInputsSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, tensor


def layer_inputs_spec(view: CheckpointView, layout: DecoderLayout, norm: NormSpec) -> LayerInputsSpec | None:
    """Sizes from the shape of the table; None: there is none."""
    name = f"{layout.prefix}embed_tokens_per_layer.weight"
    if name not in view.tensors:
        check_size(view, 0, f"there is no {name}", "hidden_size_per_layer_input")
        return None
    rows, columns = matrix_shape(view.tensors, name)
    width = columns // layout.num_layers
    check_size(view, rows, f"rows of {name}", "vocab_size_per_layer_input")
    check_size(view, width, f"{columns} columns of {name}", "hidden_size_per_layer_input")
    return LayerInputsSpec(rows, width, layout.num_layers, norm)


def layer_inputs_sources(spec: LayerInputsSpec, prefix: str) -> dict[str, Source]:
    """Sources of their parameters, under their full names; ``prefix``: what stands before ``layers.``."""
    own = {
        "table.weight": tensor(f"{prefix}embed_tokens_per_layer.weight"),
        "projection.weight": tensor(f"{prefix}per_layer_model_projection.weight"),
        **prefixed("norm", norm_sources(spec.norm, f"{prefix}per_layer_projection_norm")),
    }
    return prefixed("layer_inputs", own)


def layer_input_sources(spec: LayerInputSpec, layer: str) -> dict[str, Source]:
    """Sources of a layer's use of its input, by name within the layer."""
    own = {
        "gate.weight": tensor(f"{layer}per_layer_input_gate.weight"),
        "projection.weight": tensor(f"{layer}per_layer_projection.weight"),
        **prefixed("norm", norm_sources(spec.norm, f"{layer}post_per_layer_input_norm")),
    }
    return prefixed("layer_input", own)
