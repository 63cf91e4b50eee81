"""AttentionDecoder: reads a decoder of grouped-query attention whose family differs from Llama in names and options.

A family reads what it needs from config.json and passes it to ``spec``; what it doesn't mention is as in Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from inference.modelling.families.attention_config import Fused, attention_sources, attention_spec
from inference.modelling.families.checks import ROTARY_BUFFERS, IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import activation
from inference.modelling.families.decoder import decoder_spec, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import HeadSizes, read_fused_heads, read_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import USUAL_MLP, MLPNames, mlp_sources, mlp_spec
from inference.modelling.families.prediction_head import HeadLayer, names_behind_layers, prediction_head
from inference.modelling.families.rope_config import read_rope
from inference.modelling.spec import LayerSpec, ModelSpec, PredictionHeadSpec
from inference.modelling.specs.layers import AttentionSpec, ChannelMixerSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sources import Source

ChannelMixer = tuple[ChannelMixerSpec, Mapping[str, Source]]
"""A channel mixer and the sources of its parameters."""


PRE_NORMS = {"token_norm": "input_layernorm", "channel_norm": "post_attention_layernorm"}
SANDWICH_NORMS = {
    "token_norm": "input_layernorm",
    "token_post_norm": "post_attention_layernorm",
    "channel_norm": "pre_feedforward_layernorm",
    "channel_post_norm": "post_feedforward_layernorm",
}
"""Norms before and after each mixer, as Gemma 2 calls them."""
POST_NORMS = {"token_post_norm": "post_attention_layernorm", "channel_post_norm": "post_feedforward_layernorm"}
"""Norms only after each mixer, as OLMo 2 calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """How a family's files call the parts of a layer.

    Attributes:
        attention: Start of the attention's tensor names, within the layer.
        output: The projection behind it.
        fused: How q, k and v lie in one tensor, where they do in the family's own way.
        qk_norms: The norms of queries and keys, within the attention.
        sinks: The scores beside those of the positions, within the attention.
        gate: The projection that the attention's output is multiplied by, within the attention.
        mlp: Start of the MLP's tensor names, within the layer.
        mlp_matrices: Its projections.
        norms: Our names of a layer's norms to the file's.
        final_norm: The norm behind the layers.
    """

    attention: str = "self_attn."
    output: str = "o_proj"
    fused: Fused | None = None
    qk_norms: tuple[str, str] = ("q_norm", "k_norm")
    sinks: str = "sinks"
    gate: str = "gate_proj"
    mlp: str = "mlp."
    mlp_matrices: MLPNames = USUAL_MLP
    norms: Mapping[str, str] = field(default_factory=lambda: PRE_NORMS)
    final_norm: str = "norm"


LLAMA_NAMES = LayerNames()


@dataclass(frozen=True, slots=True)
class AttentionDecoder:
    """The sizes of a decoder, before its options are known."""

    view: CheckpointView
    names: LayerNames
    layout: DecoderLayout
    heads: HeadSizes

    @classmethod
    def read(
        cls,
        view: CheckpointView,
        names: LayerNames = LLAMA_NAMES,
        *,
        default_head_dim: int | None = None,
        fused_kv_heads: int | None = None,
        **layout_options: Any,
    ) -> AttentionDecoder:
        """Read the sizes; a file of a family that has q, k and v in one tensor may hold each alone (GGUF).

        Args:
            default_head_dim: As in ``read_heads``.
            fused_kv_heads: Heads of k and v where q, k and v are one tensor; None: as many as of q.
            layout_options: As in ``read_layout``.
        """
        layout = read_layout(view, **layout_options)
        base = layout.layer(0) + names.attention
        if names.fused is not None and base + "q_proj.weight" in view.tensors:
            names = replace(names, fused=None)
        if names.fused is not None:
            rows = matrix_shape(view.tensors, f"{base}{names.fused.name}.weight")[names.fused.is_transposed]
            return cls(view, names, layout, read_fused_heads(view, rows, fused_kv_heads))
        heads = read_heads(
            view,
            layout.layer(0),
            attention=names.attention,
            default_head_dim=default_head_dim,
            output=names.output,
            q_norm=names.qk_norms[0],
        )
        return cls(view, names, layout, heads)

    def rope(self, view: CheckpointView | None = None, **options: Any) -> RopeSpec:
        """The rotation; ``options`` as in ``read_rope``, ``view``: of another part of config.json."""
        positions = self.layout.max_position_embeddings
        return read_rope(view or self.view, self.heads.head_dim, max_position_embeddings=positions, **options)

    def spec(
        self,
        model_type: str,
        *,
        norm: NormSpec,
        ropes: RopeSpec | Sequence[RopeSpec | None] | None,
        windows: Sequence[int | None] | None = None,
        heads: Sequence[HeadSizes] | None = None,
        qk_norm: Literal["head", "each_head", "row"] | None = None,
        qk_norm_spec: NormSpec | None = None,
        attention_options: Mapping[str, Any] | None = None,
        experts: Callable[[str], ChannelMixer] | None = None,
        router: str = "mlp.gate.weight",
        act: str | None = None,
        gated: bool = True,
        is_parallel: bool = False,
        residual_multiplier: float = 1.0,
        ignored: Sequence[IgnoredTensors] = (),
        reads_head: bool = False,
        adapt: Callable[[int, HeadLayer], HeadLayer] = lambda number, layer: layer,
        outer_sources: Mapping[str, Source] = MappingProxyType({}),
        **decoder_options: Any,
    ) -> ModelSpec:
        """The whole model.

        Args:
            ropes: The rotation of all layers, or of each; None: no positions.
            windows: Each layer's sliding window; None: all see everything.
            heads: Each layer's heads; None: all have those that were read.
            qk_norm: What a norm of queries and keys runs over, and whose weights it has; None: there is none.
            qk_norm_spec: That norm; None: ``norm``.
            attention_options: Further arguments of ``AttentionSpec``.
            experts: Gives the experts of a layer by the start of its tensor names; None: all layers have MLPs.
            router: The tensor that a layer with experts has; empty: all layers have them.
            act, gated, is_parallel, residual_multiplier: Of the MLPs (``act`` None: config.json's) and ``LayerSpec``.
            reads_head: Whether a layer behind the model's own is a head for multi-token prediction of DeepSeek's kind.
            adapt: Gives a layer and its sources from its number and those that the other arguments give.
            outer_sources: Of parameters around the layers, instead of those of the layout.
            decoder_options: As in ``decoder_spec``.
        """
        options = {**(attention_options or {}), **_qk_norm_options(qk_norm, qk_norm_spec or norm)}
        act = act or activation(self.view)
        kinds: dict[str, Any] = {"residual_multiplier": residual_multiplier, "is_parallel": is_parallel}
        count = self.layout.num_layers

        def read_layer(number: int) -> HeadLayer:
            layer = self.layout.layer(number)
            at = min(number, count - 1)  # a head behind the layers has the positions of the last one
            rope = ropes if ropes is None or isinstance(ropes, RopeSpec) else ropes[at]
            window = None if windows is None else windows[at]
            sizes = self.heads if heads is None else heads[at]
            attention = self._attention(layer, sizes, rope, sliding_window=window, **options)
            is_sparse = not router or layer + router in self.view.tensors
            channel = experts(layer) if experts is not None and is_sparse else self._mlp(layer, act, gated=gated)
            return adapt(number, self._layer(layer, norm, attention, channel, kinds))

        layers, sources = read_layers(count, read_layer)
        outer = {"ignored": (ROTARY_BUFFERS, *ignored), "final_norm_name": self.names.final_norm, **decoder_options}
        outer["prediction_head"] = self._head(norm, lambda: [read_layer(count)]) if reads_head else None
        return decoder_spec(self.view, self.layout, model_type, layers, {**sources, **outer_sources}, norm, **outer)

    def _layer(
        self, layer: str, norm: NormSpec, attention: AttentionSpec, channel: ChannelMixer, kinds: Mapping[str, Any]
    ) -> HeadLayer:
        norms: dict[str, Any] = dict.fromkeys(self.names.norms, norm)
        spec = LayerSpec(token_mixer=attention, channel_mixer=channel[0], **norms, **kinds)
        return spec, self._sources(layer, norm, attention, channel[1])

    def _head(self, norm: NormSpec, read_layers: Callable[[], list[HeadLayer]]) -> PredictionHeadSpec | None:
        names = names_behind_layers(self.layout)
        return prediction_head(self.view, self.layout, names, norm, read_layers, feeds_normed_rows=False)

    def _attention(self, layer: str, heads: HeadSizes, rope: RopeSpec | None, **options: Any) -> AttentionSpec:
        names = self.names
        return attention_spec(
            self.view,
            layer,
            heads,
            rope,
            attention=names.attention,
            output=names.output,
            fused=names.fused,
            **options,
        )

    def _mlp(self, layer: str, act: str, *, gated: bool) -> ChannelMixer:
        mlp, matrices = self.names.mlp, self.names.mlp_matrices
        spec = mlp_spec(self.view, layer, act, mlp=mlp, gated=gated, names=matrices)
        return spec, mlp_sources(self.view, spec, layer, mlp=mlp, names=matrices)

    def _sources(
        self, layer: str, norm: NormSpec, attention: AttentionSpec, channel: Mapping[str, Source]
    ) -> dict[str, Source]:
        """The sources of a layer's parameters, by their names within it."""
        names = self.names
        token = attention_sources(
            self.view,
            attention,
            layer,
            attention=names.attention,
            output=names.output,
            fused=names.fused,
            qk_norms=names.qk_norms,
            sinks=names.sinks,
            gate=names.gate,
        )
        sources = prefixed("token_mixer", token) | prefixed("channel_mixer", channel)
        for kind, name in names.norms.items():
            sources |= prefixed(kind, norm_sources(norm, layer + name))
        return sources


def _qk_norm_options(over: str | None, norm: NormSpec) -> dict[str, Any]:
    """Arguments of ``AttentionSpec``."""
    if over is None:
        return {}
    return {
        "qk_norm": norm,
        "qk_norm_per_head": over != "row",
        "qk_norm_of_each_head": over == "each_head",
    }
