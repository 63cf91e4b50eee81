"""Read the head for multi-token prediction that some checkpoints hold beside the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inference.errors import CheckpointError, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.families.checks import source_shape
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.headers import STORED_DTYPES
from inference.modelling.spec import LayerSpec, PredictionHeadSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Source, tensor

HeadLayer = tuple[LayerSpec, Mapping[str, Source]]
"""A layer, and the sources of its parameters by their names within it."""


@dataclass(frozen=True, slots=True)
class HeadNames:
    """How the files call what is around a head's layers.

    Attributes:
        projection: The matrix that joins embedding and row.
        embedding_norm, hidden_norm, final_norm: The norms, without ``.weight``.
        embedding, lm_head: Tables for the head alone, which it uses where they are there; empty: it has the model's.
    """

    projection: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str
    embedding: str = ""
    lm_head: str = ""


def names_behind_layers(layout: DecoderLayout) -> HeadNames | None:
    """DeepSeek's names, of the first layer behind the model's own; None: there is no such layer.

    The layer also holds copies of the model's embedding and head, which the report says are shared.
    """
    if not layout.num_prediction_layers:
        return None
    base = layout.layer(layout.num_layers)
    return HeadNames(f"{base}eh_proj.weight", f"{base}enorm", f"{base}hnorm", f"{base}shared_head.norm")


def prediction_head(
    view: CheckpointView,
    layout: DecoderLayout,
    names: HeadNames | None,
    norm: NormSpec,
    read_layers: Callable[[], list[HeadLayer]],
    *,
    feeds_normed_rows: bool,
) -> PredictionHeadSpec | None:
    """The head; None where the files have none, or none that is whole, since the model can be served without.

    Args:
        names: What is around its layers; None: the files have none.
        norm: Of all norms around the layers.
        read_layers: Reads the layers.
        feeds_normed_rows: As in ``PredictionHeadSpec``.
    """
    if names is None or names.projection not in view.tensors:
        return None
    try:
        return _checked(view, _read(view, layout, names, norm, read_layers(), feeds_normed_rows))
    except CheckpointError as error:
        view.facts.warn(f"the head for multi-token prediction is left out: {error.message}")
        return None


def _read(
    view: CheckpointView,
    layout: DecoderLayout,
    names: HeadNames,
    norm: NormSpec,
    layers: list[HeadLayer],
    feeds_normed_rows: bool,
) -> PredictionHeadSpec:
    sources = {
        "eh_proj.weight": tensor(names.projection),
        "embedding_norm.weight": tensor(f"{names.embedding_norm}.weight"),
        "hidden_norm.weight": tensor(f"{names.hidden_norm}.weight"),
        "final_norm.weight": tensor(f"{names.final_norm}.weight"),
    }
    for number, (_, found) in enumerate(layers):
        sources |= prefixed(f"layers.{number}", found)
    has_embedding, has_lm_head = names.embedding in view.tensors, names.lm_head in view.tensors
    if has_embedding:
        sources["embed_tokens.weight"] = tensor(names.embedding)
    if has_lm_head:
        sources["lm_head.weight"] = tensor(names.lm_head)
    view.facts.add("prediction_head", "multi-token prediction", f"{names.projection} is there")
    return PredictionHeadSpec(
        format="huggingface",
        model_type="prediction_head",
        hidden_size=layout.hidden_size,
        vocab_size=layout.vocab_size,
        max_position_embeddings=layout.max_position_embeddings,
        layers=tuple(layer for layer, _ in layers),
        final_norm=norm,
        dtype=layout.dtype,
        parameters=sources,
        embedding_norm=norm,
        hidden_norm=norm,
        feeds_normed_rows=feeds_normed_rows,
        has_embedding=has_embedding,
        has_lm_head=has_lm_head,
    )


def _checked(view: CheckpointView, spec: PredictionHeadSpec) -> PredictionHeadSpec:
    """The spec, if the headers give each parameter its shape, in a dtype that is read.

    Raises:
        MissingTensor: A tensor isn't there.
        TensorShapeMismatch: A parameter would have another shape.
        UnsupportedFormat: A tensor is stored in a dtype that isn't read.
    """
    for name, expected in spec.parameter_shapes().items():
        source = spec.parameters[name]
        first = source.pieces[0].name
        found = source_shape(source, view.tensors)
        if found != expected:
            raise TensorShapeMismatch(f"{first} has shape {list(found)}, not {list(expected)} ({name}).", param=first)
        for stored in source.tensor_names():
            if view.tensors[stored].dtype not in STORED_DTYPES:
                raise UnsupportedFormat(f"{stored} is stored as {view.tensors[stored].dtype}.", param=stored)
    return spec
