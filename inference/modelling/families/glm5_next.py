"""GLM-5.3: delta rules with a decay per channel, some layers sparse latent attention, in streams that are mixed anew.

Attention has no positions, and its indexer chooses windows of tokens. Gates are cut at a limit in dense MLPs and
experts. Source: transformers' ``glm5_next``, also for what config.json may leave out, and its ``conversion_mapping``
for the names of published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, NO_ROPE, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import (
    activation,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import (
    decoder_spec,
    drafting_layers,
    llama_layer,
    llama_parts,
    read_layers,
)
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.delta_config import LINEAR_SIZES, channel_delta_mixer
from inference.modelling.families.grouped_moe import grouped_moe
from inference.modelling.families.latent_attention import compressed_indexer_spec, mla_sources, mla_spec
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_layer_kinds, has_router, moe_sources
from inference.modelling.families.shared_choice import choice_sources, scheduled_types, unused_indexers
from inference.modelling.families.state_space import check_layer_kinds as check_mixers
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import ChannelMixerSpec, TokenMixerSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec, SinkhornStreamsSpec
from inference.modelling.specs.sources import Source, tensor

GLM5_NEXT: Table = {
    **COMMON,
    **NO_ROPE,
    **used(
        "num_attention_heads", "intermediate_size", "hidden_act", "rms_norm_eps", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "layer_types", "mlp_layer_types",
        "hc_mult", "hc_eps", "hc_sinkhorn_iters", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
        "moe_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "swiglu_limit",
        "index_topk", "index_head_dim", "index_n_heads", "index_kpool", "indexer_types", "index_topk_pattern",
        "index_topk_freq", "index_skip_topk_offset", "num_nextn_predict_layers",
    ),
    **LINEAR_SIZES,
    **aliases("linear_attn_config.gate_lower_bound", "linear_lower_bound"),
    **aliases("n_routed_experts", "num_local_experts"),
    **harmless("of a layer that drafts", "index_share_for_mtp_iteration"),
    **harmless("up to rounding", "moe_router_dtype"),
    **harmless("training only", "output_router_logits", "router_aux_loss_coef"),
    "num_key_value_heads": Harmless("latent attention has no key/value heads"),
    "head_dim": Harmless("attention isn't rotated, and the shapes say the rest"),
    "attention_bias": Only((False,), "the projections have no biases"),
    "scoring_func": Only(("sigmoid",), "experts are scored by sigmoid"),
    "topk_method": Only(("noaux_tc",), "a bias is added to the scores for choosing"),
    "index_kpool_always_select_tail": Only((True,), "a query sees the tokens behind the last whole window"),
    "linear_attn_config": Members(
        used("head_dim", "num_heads", "short_conv_kernel_size", "gate_lower_bound", "safe_gate")
    ),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"glm5_next_text": GLM5_NEXT, "glm5_next": around(GLM5_NEXT)}

# transformers' defaults.
CONTEXT = 1 << 20
ROUTED_FACTOR = 2.5
SWIGLU_LIMIT = 10.0
LOWER_BOUND = -5.0
LINEAR, INDEXED = "kimi_delta", "mla"
KINDS = {"linear_attention": LINEAR, "indexed_attention": INDEXED, "full_attention": INDEXED}
LEAVES = ("fn", "base", "scale")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the layers of one checkpoint.

    Attributes:
        sources: For each layer the number of the one whose indexer's choice it goes by; None: its own.
        limit: The experts' and MLPs' gates are clamped at this.
    """

    view: CheckpointView
    layout: DecoderLayout
    norm: NormSpec
    streams: SinkhornStreamsSpec
    sources: tuple[int | None, ...]
    limit: float

    def read(self, number: int) -> tuple[LayerSpec, dict[str, Source]]:
        """A layer, and the sources of its parameters."""
        layer = self.layout.layer(number)
        token, token_sources = self._token_mixer(number, f"{layer}self_attn.")
        channel, channel_sources = self._channel_mixer(layer)
        found = llama_parts(layer, token_sources, channel_sources)
        for ours, theirs in (("token", "attn"), ("channel", "ffn")):
            found |= prefixed(f"hyper.{ours}", self._gates(layer, theirs))
        return replace(llama_layer(token, channel, self.norm), hyper=self.streams), found

    def _token_mixer(self, number: int, base: str) -> tuple[TokenMixerSpec, dict[str, Source]]:
        view = self.view
        if f"{base}kv_a_proj_with_mqa.weight" not in view.tensors:
            return channel_delta_mixer(view, base, self.norm.eps, _least_log_decay(view))
        spec = mla_spec(view, base, self.layout.max_position_embeddings, interleaved=None)
        norm = None if spec.q_a_norm is None else self.norm
        spec = replace(spec, q_a_norm=norm, kv_a_norm=self.norm, choice_source=self.sources[number])
        if spec.choice_source is None:
            spec = replace(spec, indexer=compressed_indexer_spec(view, base, spec))
        return spec, mla_sources(spec, base)

    def _channel_mixer(self, layer: str) -> tuple[ChannelMixerSpec, dict[str, Source]]:
        view, act = self.view, activation(self.view)
        if not has_router(view, layer):
            mlp = replace(mlp_spec(view, layer, act), activation_limit=self.limit)
            return mlp, mlp_sources(view, mlp, layer)
        moe = grouped_moe(view, layer, act, factor=ROUTED_FACTOR, needs_bias=True)
        moe = replace(moe, activation_limit=self.limit, limits_shared=True)
        return moe, moe_sources(view, moe, f"{layer}mlp.", shared="shared_experts.")

    def _gates(self, layer: str, part: str) -> dict[str, Source]:
        """Sources of a mixer's gates, by the names of published files or those of transformers' memory."""
        stored = f"{layer}hc_{part}_" if f"{layer}hc_{part}_fn" in self.view.tensors else f"{layer}{part}_hc."
        return {leaf: tensor(stored + leaf) for leaf in LEAVES}


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    prediction = view.config.integer("num_nextn_predict_layers", default=1, low=0)
    layout = read_layout(view, prediction_layers=prediction, default_max_position_embeddings=CONTEXT)
    norm = rms_norm(view, default=1e-5)
    streams = SinkhornStreamsSpec(
        num_streams=integer_with_evidence(view, "streams.count", ("hc_mult",), 4, high=64),
        magnitude=2.0,
        eps=number_with_evidence(view, "streams.eps", ("hc_eps",), 1e-6, low=0.0, high=1.0),
        norm_eps=norm.eps,
        iterations=integer_with_evidence(view, "streams.iterations", ("hc_sinkhorn_iters",), 20, high=1000),
    )
    sources = choice_sources(view, layout, scheduled_types(view, layout.num_layers))
    limit = number_with_evidence(view, "moe.activation_limit", ("swiglu_limit",), SWIGLU_LIMIT, low=1e-6, high=1e6)
    reader = Reader(view, layout, norm, streams, sources, limit)
    layers, found = read_layers(layout.num_layers, reader.read)
    _check_kinds(view, layers)
    _check_choices(layers)
    check_layer_kinds(view, layout)
    return decoder_spec(
        view,
        layout,
        "glm5_next_text",
        layers,
        found,
        norm,
        ignored=(*drafting_layers(layout), *unused_indexers(layout, sources)),
        streams=MeanStreamsSpec(streams.num_streams),
    )


def _least_log_decay(view: CheckpointView) -> float | None:
    """The bound of the decays; None: there is none."""
    config, key, inner = view.config, "linear_lower_bound", "linear_attn_config.gate_lower_bound"
    stated: Any = config.get("linear_attn_config", default={})
    bound = config.values.get(key, LOWER_BOUND)
    if isinstance(stated, Mapping):
        bound = stated.get("gate_lower_bound", bound)
        if stated and bound is None and config.boolean("linear_attn_config.safe_gate", default=True):
            return LOWER_BOUND
    return None if bound is None else config.number(inner, key, default=LOWER_BOUND, low=-1e3, high=-1e-3)


def _check_kinds(view: CheckpointView, layers: list[LayerSpec]) -> None:
    """Compare the types of layers, if they are stated, with the tensors.

    Raises:
        CorruptCheckpoint: Another word, or not one for each layer.
        TensorShapeMismatch: The tensors say otherwise.
    """
    stated = view.config.strings("layer_types")
    if not stated:
        return
    if len(stated) < len(layers) or not set(stated) <= KINDS.keys():
        raise CorruptCheckpoint(
            f"config.json: layer_types needs one of {', '.join(KINDS)} for each of {len(layers)} layers; it is "
            f"{str(list(stated))[:80]}.",
            param="layer_types",
        )
    check_mixers("layer_types", [KINDS[kind] for kind in stated[: len(layers)]], layers)


def _check_choices(layers: list[LayerSpec]) -> None:
    """Check that layers which go by another one's choice follow it directly, as transformers hands it on.

    Raises:
        TensorShapeMismatch: One doesn't.
    """
    for number, layer in enumerate(layers):
        if isinstance(layer.token_mixer, MLASpec) and layer.token_mixer.choice_source is not None:
            before = layers[number - 1].token_mixer if number else None
            if not isinstance(before, MLASpec):
                raise TensorShapeMismatch(
                    f"layer {number} goes by another layer's choice of tokens (indexer_types), but the layer before it "
                    "is no attention; correct config.json.",
                    param="indexer_types",
                )
