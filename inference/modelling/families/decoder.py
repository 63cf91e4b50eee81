"""Build the ModelSpec of a decoder from its DecoderLayout and its layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference.modelling.families.checks import DRAFTS, MASK_BUFFERS, IgnoredTensors, finish
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_values import check_size
from inference.modelling.families.decoder_layout import CONTEXT_KEYS, DecoderLayout
from inference.modelling.families.headers import matrix_shape
from inference.modelling.spec import AnyStreamsSpec, LayerSpec, ModelSpec, PredictionHeadSpec
from inference.modelling.specs.layer_inputs import LayerInputsSpec
from inference.modelling.specs.layers import ChannelMixerSpec, TokenMixerSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.positions import SinusoidsSpec
from inference.modelling.specs.sources import Piece, Source, tensor


def llama_layer(token_mixer: TokenMixerSpec, channel_mixer: ChannelMixerSpec, norm: NormSpec) -> LayerSpec:
    """The pre-norm layer of Llama: norm, attention, norm, MLP or MoE."""
    return LayerSpec(token_mixer=token_mixer, token_norm=norm, channel_mixer=channel_mixer, channel_norm=norm)


def llama_layer_sources(
    number: int,
    layer: str,
    token_mixer: Mapping[str, Source],
    channel_mixer: Mapping[str, Source],
    *,
    channel_norm: str = "post_attention_layernorm",
) -> dict[str, Source]:
    """Sources of a ``llama_layer``'s parameters, under their full names; the arguments as in ``llama_parts``."""
    return prefixed(f"layers.{number}", llama_parts(layer, token_mixer, channel_mixer, channel_norm=channel_norm))


def llama_parts(
    layer: str,
    token_mixer: Mapping[str, Source],
    channel_mixer: Mapping[str, Source],
    *,
    channel_norm: str = "post_attention_layernorm",
) -> dict[str, Source]:
    """Sources of a ``llama_layer``'s parameters, by their names within it.

    Args:
        layer: Start of its tensor names.
        token_mixer: Sources by name within the mixer.
        channel_norm: The file's name of the norm before the channel mixer.
    """
    return {
        "token_norm.weight": tensor(f"{layer}input_layernorm.weight"),
        "channel_norm.weight": tensor(f"{layer}{channel_norm}.weight"),
        **prefixed("token_mixer", token_mixer),
        **prefixed("channel_mixer", channel_mixer),
    }


def norm_sources(norm: NormSpec, name: str) -> dict[str, Source]:
    """Sources of a norm's own parameters, whose tensors start with ``name``."""
    return {leaf: tensor(f"{name}.{leaf}") for leaf in norm.parameter_names()}


@dataclass(frozen=True, slots=True)
class Positions:
    """A table of learned positions.

    Attributes:
        name: Of its tensor.
        first: Row of position 0.
    """

    name: str
    first: int = 0


def _outer_sources(
    layout: DecoderLayout, norm: NormSpec | None, final_norm: str, head_bias: str | None, positions: Source | None
) -> dict[str, Source]:
    """Embedding, positions, final norm and head."""
    rows = (0, layout.vocab_size) if layout.spare_rows else None
    sources = {"embed_tokens.weight": Source((Piece(layout.embedding, rows=rows),))}
    if positions is not None:
        sources["embed_positions.weight"] = positions
    if norm is not None:
        sources |= prefixed("final_norm", norm_sources(norm, layout.prefix + final_norm))
    if layout.head is not None:
        sources["lm_head.weight"] = tensor(layout.head)
    if head_bias is not None:
        sources["lm_head.bias"] = tensor(head_bias)
    return sources


def drafting_layers(layout: DecoderLayout) -> tuple[IgnoredTensors, ...]:
    """The layers behind the model's own, which only draft tokens (``prediction_head``)."""
    if not layout.num_prediction_layers:
        return ()
    later = "|".join(str(layout.num_layers + number) for number in range(layout.num_prediction_layers))
    names = re.compile(rf"{re.escape(layout.prefix + layout.layers)}({later})\.")
    return (IgnoredTensors(names, "layers for drafting several tokens, beside the model itself"),)


def read_layers(
    count: int, read_layer: Callable[[int], tuple[LayerSpec, Mapping[str, Source]]]
) -> tuple[list[LayerSpec], dict[str, Source]]:
    """Return the layers that ``read_layer`` gives for each number, and the sources of their parameters."""
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(count):
        spec, found = read_layer(number)
        layers.append(spec)
        sources |= prefixed(f"layers.{number}", found)
    return layers, sources


def _position_table(view: CheckpointView, positions: Positions) -> tuple[Source, int]:
    """Return the source of a table of learned positions, and its rows."""
    count = matrix_shape(view.tensors, positions.name)[0]
    rows = max(count - positions.first, 0)
    check_size(view, rows, f"rows of {positions.name}", *CONTEXT_KEYS)
    return Source((Piece(positions.name, rows=(positions.first, count)),)), rows


def _head_bias(view: CheckpointView, layout: DecoderLayout) -> str | None:
    """The name of the head's bias; None: there is none."""
    name = "" if layout.head is None else layout.head.removesuffix("weight") + "bias"
    return name if name in view.tensors else None


def decoder_spec(
    view: CheckpointView,
    layout: DecoderLayout,
    model_type: str,
    layers: Sequence[LayerSpec],
    layer_sources: Mapping[str, Source],
    final_norm: NormSpec | None,
    *,
    ignored: Sequence[IgnoredTensors] = (),
    embedding_multiplier: float = 1.0,
    embedding_norm: NormSpec | None = None,
    embedding_norm_name: str = "embedding_norm",
    logits_multiplier: float = 1.0,
    logits_softcap: float | None = None,
    final_norm_name: str = "norm",
    can_have_head_bias: bool = False,
    positions: Positions | None = None,
    prediction_head: PredictionHeadSpec | None = None,
    layer_inputs: LayerInputsSpec | None = None,
    streams: AnyStreamsSpec | None = None,
    scales_embedding: bool = False,
    sinusoids: SinusoidsSpec | None = None,
) -> ModelSpec:
    """Spec of the whole model, checked by ``finish``; ``ignored`` as there.

    Args:
        embedding_norm: Norm of the embedding, with its name in the files.
        can_have_head_bias: The head has a bias where its tensor is there.
        positions: Learned positions; the context is as long as their table.
        layer_inputs, streams, scales_embedding, sinusoids, prediction_head: As in ``ModelSpec``.
    """
    table, position_rows = (None, 0) if positions is None else _position_table(view, positions)
    head_bias = _head_bias(view, layout) if can_have_head_bias else None
    outer = _outer_sources(layout, final_norm, final_norm_name, head_bias, table)
    if embedding_norm is not None:
        outer |= prefixed("embedding_norm", norm_sources(embedding_norm, layout.prefix + embedding_norm_name))
    spec = ModelSpec(
        format="huggingface",
        model_type=model_type,
        hidden_size=layout.hidden_size,
        vocab_size=layout.vocab_size,
        max_position_embeddings=position_rows or layout.max_position_embeddings,
        layers=tuple(layers),
        final_norm=final_norm,
        dtype=layout.dtype,
        tie_word_embeddings=layout.head is None,
        head_bias=head_bias is not None,
        position_rows=position_rows,
        embedding_multiplier=embedding_multiplier,
        embedding_norm=embedding_norm,
        logits_multiplier=logits_multiplier,
        logits_softcap=logits_softcap,
        layer_inputs=layer_inputs,
        streams=streams,
        scales_embedding=scales_embedding,
        sinusoids=sinusoids,
        parameters={**outer, **layer_sources},
        prediction_head=prediction_head,
    )
    return finish(view, spec, ignored=(MASK_BUFFERS, DRAFTS, *ignored))
