"""A.X-K1 and A.X-K2: DeepSeek-V3 and V3.2 with norms behind the experts; gates on norms and on attention.

Sources: transformers' ``axk1`` and ``axk2``, also for what config.json may leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import check_size
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.deepseek import DEEPSEEK, SPARSE, Variant, latent_decoder
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "axk1": {**DEEPSEEK, **used("norm_topk_prob", "rope_interleave", "mlp_layer_types")},
    "axk2": {
        **SPARSE,
        **used("gated_norm_rank"),
        "rope_interleave": Only((True,), "adjacent pairs are rotated"),
    },
}

POST_NORM = re.compile(r"\.post_mlp_layernorm\.weight$")


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="axk1")

    def variant(layout: DecoderLayout, norm: NormSpec) -> Variant:
        if model_type == "axk2":
            return Variant(layer=lambda base, layer: _with_gates(view, base, layer))
        ignored = IgnoredTensors(POST_NORM, "norms behind dense MLPs, which the model doesn't apply")
        return Variant(layer=lambda base, layer: _with_post_norm(view, base, layer, norm), ignored=(ignored,))

    return latent_decoder(view, model_type, variant)


def _with_post_norm(view: CheckpointView, base: str, layer: HeadLayer, norm: NormSpec) -> HeadLayer:
    """The layer, with a norm behind its experts, which transformers 5 keeps among them."""
    spec, sources = layer
    if not isinstance(spec.channel_mixer, MoESpec):
        return layer
    inner = f"{base}mlp.post_mlp_layernorm.weight"
    name = inner if inner in view.tensors else f"{base}post_mlp_layernorm.weight"
    return replace(spec, channel_post_norm=norm), {**sources, "channel_post_norm.weight": tensor(name)}


def _with_gates(view: CheckpointView, base: str, layer: HeadLayer) -> HeadLayer:
    """The layer, with gates on the norms before its attention and its experts."""
    spec, sources = layer
    found = dict(sources)
    spec = replace(spec, token_gate_rank=_add_gate(view, f"{base}input_layernorm.", "token", found))
    if isinstance(spec.channel_mixer, MoESpec):
        rank = _add_gate(view, f"{base}post_attention_layernorm.", "channel", found)
        spec = replace(spec, channel_mixer=replace(spec.channel_mixer, group_floor=0.0), channel_gate_rank=rank)
    return spec, found


def _add_gate(view: CheckpointView, base: str, name: str, sources: dict[str, Source]) -> int:
    """Add the sources of a norm with a gate, under ``base``; return the gate's rank."""
    is_of_hub = f"{base}W_down.weight" in view.tensors
    down, up = ("W_down", "W_up") if is_of_hub else ("mlp.fc1", "mlp.fc2")
    rank = matrix_shape(view.tensors, f"{base}{down}.weight")[0]
    check_size(view, rank, f"rows of {base}{down}.weight", "gated_norm_rank")
    sources[f"{name}_norm.weight"] = tensor(f"{base}norm.weight")
    sources[f"{name}_gate.down_proj.weight"] = tensor(f"{base}{down}.weight")
    sources[f"{name}_gate.up_proj.weight"] = tensor(f"{base}{up}.weight")
    return rank
