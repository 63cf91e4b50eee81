"""HY 4 (Hunyuan): GLM-5's attention with gates and sinks, in several residual streams that each mixer reads by gates.

Source: transformers' ``hy_v4``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import integer_with_evidence, number_with_evidence
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.deepseek import SPARSE, Variant, latent_decoder
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.shared_choice import FULL, SHARED, choice_sources, unused_indexers
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.indexer import IndexerSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

CONFIG_KEYS: Mapping[str, Table] = {
    "hy_v4": {
        **SPARSE,
        **used("indexer_types", "hc_mult", "hc_magnitude", "hc_eps", "swiglu_limit"),
        "learnable_sink_init": Harmless("start values of a training"),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    def variant(layout: DecoderLayout, norm: NormSpec) -> Variant:
        # The first two layers choose, then one of four.
        default = [SHARED if number and (number - 1) % 4 else FULL for number in range(layout.num_layers)]
        choices = choice_sources(view, layout, default)
        streams = GatedStreamsSpec(
            num_streams=integer_with_evidence(view, "streams.count", ("hc_mult",), 4, high=64),
            magnitude=number_with_evidence(view, "streams.magnitude", ("hc_magnitude",), 2.0, low=1e-6, high=1e6),
            eps=number_with_evidence(view, "streams.eps", ("hc_eps",), 1e-6, low=0.0, high=1.0),
            norm_eps=norm.eps,
        )

        def attention(number: int, spec: MLASpec) -> MLASpec:
            assert isinstance(spec.indexer, IndexerSpec)
            own = replace(spec.indexer, rotates_last=True, k_norm=NormSpec("layer", norm.eps))
            source = choices[number]
            return replace(
                spec,
                output_gate=True,
                has_sinks=True,
                indexer=own if source is None else None,
                choice_source=source,
            )

        return Variant(
            attention=attention,
            layer=lambda base, layer: _layer(view, base, layer, streams),
            ignored=unused_indexers(layout, choices),
            streams=streams,
            outer=prefixed("streams", _gates(view, layout.prefix, HEAD)),
        )

    return latent_decoder(view, "hy_v4", variant)


LEAVES = ("fn", "base", "scale")
HEAD = (("hc_head.", ""), ("hc_", "hc_head_"))
STREAMS = {
    "token": (("attn_hc.", "hc_attn_layer."), ("", "hc_")),
    "channel": (("ffn_hc.", "hc_mlp_layer."), ("", "hc_")),
}
"""Our names of the gates of streams to those of the files: of the part, and before the parameter.

Published files, and those of transformers 5, also have ``hc_pre.`` in one place or the other.
"""


def _stored(view: CheckpointView, names: Sequence[str]) -> Source:
    """The tensor of the first of these names that is there; else of the first."""
    return tensor(next((name for name in names if name in view.tensors), names[0]))


def _gates(view: CheckpointView, base: str, parts: tuple[Sequence[str], Sequence[str]]) -> dict[str, Source]:
    """Sources of the gates under ``base``."""
    places = [
        base + outer + part + inner + stem
        for outer, inner in (("", ""), ("", "hc_pre."), ("hc_pre.", ""))
        for part in parts[0]
        for stem in parts[1]
    ]
    return {leaf: _stored(view, [place + leaf for place in places]) for leaf in LEAVES}


def _renamed(view: CheckpointView, source: Source) -> Source:
    """The source, by the name that transformers 5 gives to the gates of MLPs when it writes a file."""

    def stored(name: str) -> str:
        other = name.replace(".gate_proj.", ".linear_gate.")
        return other if other.replace("{e}", "0") in view.tensors else name

    return replace(source, pieces=tuple(replace(piece, name=stored(piece.name)) for piece in source.pieces))


def _layer(view: CheckpointView, base: str, layer: HeadLayer, streams: GatedStreamsSpec) -> HeadLayer:
    """The layer in several streams; its experts' activations are cut, its attention has gates and sinks."""
    spec, sources = layer
    attention = f"{base}self_attn."
    found = {name: _renamed(view, source) for name, source in sources.items()}
    found["token_mixer.gate_proj.weight"] = _renamed(view, tensor(f"{attention}gate_proj.weight"))
    found["token_mixer.sinks"] = _stored(view, [f"{attention}sinks", f"{attention}learnable_sink_param"])
    for mixer, parts in STREAMS.items():
        found |= prefixed(f"hyper.{mixer}", _gates(view, base, parts))
    channel = spec.channel_mixer
    if isinstance(channel, MoESpec):
        limit = number_with_evidence(view, "moe.activation_limit", ("swiglu_limit",), 10.0, low=1e-6, high=1e6)
        channel = replace(channel, activation_limit=limit)
    return replace(spec, channel_mixer=channel, hyper=streams), found
