"""Gemma 4, its text model: two sizes of heads, layers with inputs of their own, keys and values shared at the end.

Full layers have wider heads, of which a share turns, and may take their keys as values; the last layers read the keys
and values of an earlier one; each layer may add an input of its own and multiplies the stream by a learned number; an
MLP may have experts beside it.

Source: transformers' ``gemma4_text``, also for what config.json may leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.attention_config import attention_sources
from inference.modelling.families.attention_decoder import SANDWICH_NORMS
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, QKVO_BIAS, ROPE_MEMBERS, Table, used
from inference.modelling.families.config_keys import Members, Only
from inference.modelling.families.config_values import check_size, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, norm_sources
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.gemma2 import gemma_activation, read_softcap
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.layer_inputs import layer_input_sources, layer_inputs_sources, layer_inputs_spec
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_routing, count_experts
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.shared_cache import kv_sources, unused_projections
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layer_inputs import LayerInputSpec
from inference.modelling.specs.layers import AttentionSpec, MoESpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Source, concatenated, tensor

UNIFIED: Table = {
    **COMMON,
    **used(
        "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps",
        "hidden_activation", "sliding_window", "layer_types", "final_logit_softcapping", "global_head_dim",
        "num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers", "use_double_wide_mlp",
    ),
    "attention_bias": QKVO_BIAS,
    "rope_parameters": Members(ROPE_MEMBERS),
    "per_layer_config": Members(used("head_dim", "num_key_value_heads")),
    "use_bidirectional_attention": Only(("vision",), "a model that sees later tokens of a text can't generate one"),
}  # fmt: skip
GEMMA4: Table = {
    **UNIFIED,
    **used(
        "hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "num_experts",
        "top_k_experts", "moe_intermediate_size",
    ),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "gemma4_text": GEMMA4,
    "gemma4": around(GEMMA4),
    "gemma4_unified_text": UNIFIED,
    "gemma4_unified": around(UNIFIED),
}

# transformers' defaults.
CONTEXT, UNIFIED_CONTEXT = 131072, 262144
WINDOW, UNIFIED_WINDOW = 512, 1024
PATTERN = 6
"""Every so many layers, one sees all positions."""
ROPES: Mapping[str, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
BRANCH_NORMS = {
    "shared_norm": "pre_feedforward_layernorm",
    "shared_post_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_post_norm": "post_feedforward_layernorm_2",
}
"""Our names of the norms around an MLP and the experts beside it to the file's."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """What the layers of a checkpoint have in common.

    Attributes:
        norm: Of the stream.
        act: Activation of MLPs, experts and the gates of layers' inputs.
        input_width: Width of a layer's own input; 0: there are none.
    """

    view: CheckpointView
    norm: NormSpec
    act: str
    input_width: int

    def attention(self, layer: str, kind: str, number: int, owner: str, **options: Any) -> AttentionSpec:
        """Attention of a layer, whose keys and values are those of the layer ``owner``."""
        heads = self._heads(layer, kind, number, owner)
        names = [f"{layer}self_attn.{name}_proj.bias" for name in "qo"]
        return AttentionSpec(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            scale=1.0,
            qkv_bias=names[0] in self.view.tensors,
            o_bias=names[1] in self.view.tensors,
            qk_norm=self.norm,
            **options,
        )

    def _heads(self, layer: str, kind: str, number: int, owner: str) -> HeadSizes:
        """Width from the norm of the queries, counts from the projections; config.json may not contradict them."""
        tensors = self.view.tensors
        width = vector_length(tensors, f"{layer}self_attn.q_norm.weight")
        rows = matrix_shape(tensors, f"{layer}self_attn.q_proj.weight")[0]
        kv_rows = matrix_shape(tensors, f"{owner}self_attn.k_proj.weight")[0]
        if rows % width or kv_rows % width or rows % max(kv_rows, 1):
            raise TensorShapeMismatch(
                f"{layer}self_attn: heads of {width} don't divide {rows} rows of q_proj and {kv_rows} of k_proj.",
                param=f"{layer}self_attn.q_proj.weight",
            )
        heads = HeadSizes(rows // width, kv_rows // width, width)
        stated = _stated_sizes(self.view, kind, number)
        for key, found in (("head_dim", width), ("num_key_value_heads", heads.num_kv_heads)):
            check_size(stated, found, f"{layer}self_attn, {kind}", key)
        check_size(self.view, heads.num_heads, f"{layer}self_attn", "num_attention_heads")
        name = "attention.full_" if kind == TYPES[1] else "attention."
        self.view.facts.add(f"{name}head_dim", width, f"length of {layer}self_attn.q_norm.weight")
        return heads

    def attention_sources(self, spec: AttentionSpec, layer: str) -> dict[str, Source]:
        """As the frame's, but with the keys as values where the file has no values."""
        base = f"{layer}self_attn."
        sources = attention_sources(self.view, spec, layer)
        if spec.kv_source is not None or f"{base}v_proj.weight" in self.view.tensors:
            return sources
        names = ("q_proj", "k_proj", "k_proj")
        for leaf in ("weight", "bias") if spec.qkv_bias else ("weight",):
            sources[f"qkv_proj.{leaf}"] = concatenated(*(f"{base}{name}.{leaf}" for name in names))
        return sources

    def channel(self, layer: str, *, is_wide: bool) -> tuple[dict[str, Any], dict[str, Source]]:
        """The arguments of ``LayerSpec`` for a layer's MLP, or MLP and experts, and their sources in the layer.

        Args:
            is_wide: The MLP is twice as wide as config.json says.
        """
        width = self.view.config.optional_integer("intermediate_size")
        wider = self.view if width is None or not is_wide else self.view.changed(intermediate_size=2 * width)
        mlp = mlp_spec(wider, layer, self.act)
        sources = mlp_sources(self.view, mlp, layer)
        if f"{layer}router.proj.weight" not in self.view.tensors:
            own = prefixed("channel_mixer", sources)
            own |= prefixed("channel_norm", norm_sources(self.norm, f"{layer}pre_feedforward_layernorm"))
            return {"channel_mixer": mlp, "channel_norm": self.norm}, own
        moe = self._moe(layer, mlp.intermediate_size)
        sources = prefixed("shared_expert", sources) | {
            "router.weight": tensor(f"{layer}router.proj.weight"),
            "router.norm.weight": tensor(f"{layer}router.scale"),
            "router.expert_scale": tensor(f"{layer}router.per_expert_scale"),
            "experts.gate_up_proj": tensor(f"{layer}experts.gate_up_proj"),
            "experts.down_proj": tensor(f"{layer}experts.down_proj"),
        }
        for ours, theirs in BRANCH_NORMS.items():
            sources |= prefixed(ours, norm_sources(self.norm, layer + theirs))
        return {"channel_mixer": moe}, prefixed("channel_mixer", sources)

    def _moe(self, layer: str, shared_width: int) -> MoESpec:
        view = self.view
        count, width = count_experts(view, f"{layer}experts.")
        check_size(view, count, f"experts of {layer[:-1]}", "num_experts")
        check_size(view, width, f"width of an expert of {layer[:-1]}", "moe_intermediate_size")
        hidden_size = matrix_shape(view.tensors, f"{layer}router.proj.weight")[1]
        return check_routing(
            MoESpec(
                num_experts=count,
                top_k=integer_with_evidence(view, "moe.top_k", ("top_k_experts",), 8),
                intermediate_size=width,
                activation=self.act,
                shared_intermediate_size=shared_width,
                branch_norm=self.norm,
                router_norm=self.norm,
                router_multiplier=hidden_size**-0.5,
                expert_scale=True,
            )
        )

    def layer(self, name: str, attention: AttentionSpec, *, is_wide: bool) -> tuple[LayerSpec, dict[str, Source]]:
        """A layer around its attention, and the sources of its parameters within it."""
        channel, sources = self.channel(name, is_wide=is_wide)
        sources |= prefixed("token_mixer", self.attention_sources(attention, name))
        for ours in ("token_norm", "token_post_norm", "channel_post_norm"):
            sources |= prefixed(ours, norm_sources(self.norm, name + SANDWICH_NORMS[ours]))
        sources["stream_scale"] = tensor(f"{name}layer_scalar")
        own = None
        if self.input_width:
            own = LayerInputSpec(self.input_width, self.act, self.norm)
            sources |= layer_input_sources(own, name)
        spec = LayerSpec(
            token_mixer=attention,
            token_norm=self.norm,
            token_post_norm=self.norm,
            channel_post_norm=self.norm,
            layer_input=own,
            has_stream_scale=True,
            **channel,
        )
        return spec, sources


def build_spec(view: CheckpointView) -> ModelSpec:
    is_unified = view.config.string("model_type", default="gemma4_text").startswith("gemma4_unified")
    view = text_part(view)
    context, window = (UNIFIED_CONTEXT, UNIFIED_WINDOW) if is_unified else (CONTEXT, WINDOW)
    layout = read_layout(view, tied_by_default=True, default_max_position_embeddings=context)
    norm = rms_norm(view)
    inputs = layer_inputs_spec(view, layout, norm)
    reader = _Reader(view, norm, gemma_activation(view), 0 if inputs is None else inputs.width)
    types = _types(view, layout.num_layers)
    windows = window_of_each_layer(types, sliding_window(view, default=window))
    shared = kv_sources(view, types, 0)
    is_double = view.config.boolean("use_double_wide_mlp", default=False)
    _check_moe(view, layout.layer(0))
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {} if inputs is None else layer_inputs_sources(inputs, layout.prefix)
    for number, kind in enumerate(types):
        name, source = layout.layer(number), shared[number]
        owner = name if source is None else layout.layer(source)
        _check_values(view, owner, kind)
        attention = reader.attention(
            name,
            kind,
            number,
            owner,
            sliding_window=windows[number],
            v_norm=replace(norm, weightless=True) if source is None else None,
            kv_source=source,
        )
        rope = _rope(view, kind, attention.head_dim, layout.max_position_embeddings)
        attention = replace(attention, rope=rope)
        spec, own = reader.layer(name, attention, is_wide=is_double and source is not None)
        layers.append(spec)
        sources |= prefixed(f"layers.{number}", own)
    return decoder_spec(
        view,
        layout,
        "gemma4_unified_text" if is_unified else "gemma4_text",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS, OTHER_PARTS, unused_projections(layout, shared)),
        embedding_multiplier=math.sqrt(layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", None),
        layer_inputs=inputs,
    )


def _types(view: CheckpointView, count: int) -> tuple[str, ...]:
    """The type of each layer; the last one is full, whatever config.json says, as in transformers."""
    types: Sequence[str] = layer_types(view, count, TYPES) or full_every(PATTERN, count)
    return (*types[:-1], TYPES[1])


def _rope(view: CheckpointView, kind: str, head_dim: int, context: int) -> RopeSpec:
    return rope_of_type(
        view, kind, head_dim, ROPES, max_position_embeddings=context, can_be_proportional=kind == TYPES[1]
    )


def _stated_sizes(view: CheckpointView, kind: str, number: int) -> CheckpointView:
    """config.json with the sizes of the heads of this layer, or without them where it doesn't state any.

    transformers 5.23 writes what differs under the layer's number, earlier files have keys for full layers.

    Raises:
        CorruptCheckpoint: ``per_layer_config`` isn't an object of objects.
    """
    config = view.config
    by_layer = config.get("per_layer_config", default={})
    own = by_layer.get(str(number), by_layer.get(kind, {})) if isinstance(by_layer, Mapping) else None
    if not isinstance(own, Mapping):
        raise CorruptCheckpoint(
            f"config.json: per_layer_config is {str(by_layer)[:60]!r}; it must be an object of objects.",
            param="per_layer_config",
        )
    if by_layer or kind != TYPES[1]:
        return view.changed(**own)
    heads = config.get("num_key_value_heads")
    if config.boolean("attention_k_eq_v", default=False):
        heads = config.get("num_global_key_value_heads", default=heads)
    return view.changed(head_dim=config.get("global_head_dim"), num_key_value_heads=heads)


def _check_values(view: CheckpointView, layer: str, kind: str) -> None:
    """Compare ``attention_k_eq_v`` with whether the layer has values of its own."""
    stated = kind == TYPES[1] and view.config.boolean("attention_k_eq_v", default=False)
    name = f"{layer}self_attn.v_proj.weight"
    if stated == (name in view.tensors):
        raise TensorShapeMismatch(
            f"config.json says attention_k_eq_v {str(stated).lower()}, but {name} is "
            f"{'there' if stated else 'missing'}; correct config.json.",
            param="attention_k_eq_v",
        )


def _check_moe(view: CheckpointView, layer: str) -> None:
    """Compare ``enable_moe_block`` with whether there are experts."""
    stated, name = view.config.boolean("enable_moe_block", default=False), f"{layer}router.proj.weight"
    if stated != (name in view.tensors):
        raise TensorShapeMismatch(
            f"config.json says enable_moe_block {str(stated).lower()}, but {name} is "
            f"{'missing' if stated else 'there'}; correct config.json.",
            param="enable_moe_block",
        )
