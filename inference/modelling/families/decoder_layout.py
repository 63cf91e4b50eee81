"""DecoderLayout: what a decoder has around its layers, read from tensor names and config.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from inference.errors import (
    CorruptCheckpoint,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import MAX_LAYERS, CheckpointView, Confidence, TensorTable
from inference.modelling.families.config_values import check_size, integer_with_evidence
from inference.modelling.families.headers import STORED_DTYPES, matrix_shape, sample_of
from inference.modelling.specs.parts import Dtype, Shape

CONTEXT_KEYS = ("max_position_embeddings", "max_seq_len", "n_positions", "model_max_length")
OUTER_PREFIXES = ("model.language_model.", "language_model.", "model.text_model.", "thinker.", "")
"""What stands before the names of a text model within another model; alone: nothing."""
_LAYER_COUNT_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """What a decoder has around its layers.

    Attributes:
        prefix: What stands before ``layers.N.`` in the tensor names: ``model.``, ``backbone.`` or nothing.
        embedding: Name of the embedding's tensor.
        head: Name of the head's tensor; None: the embedding is the head.
        layers: What stands between the prefix and a layer's number.
        num_prediction_layers: Layers after them in the files, which only draft tokens and are left out.
        hidden_size: Columns of the embedding.
        vocab_size: Rows of the embedding.
        dtype: Dtype of the embedding, taken for the whole checkpoint.
        max_position_embeddings: Context of the model in tokens.
        spare_rows: Rows of the embedding behind those of the vocabulary, which are left out.
        numbers: Those of the layers in the files, where some are left out; None: all are read.
    """

    prefix: str
    embedding: str
    head: str | None
    num_layers: int
    num_prediction_layers: int
    layers: str
    hidden_size: int
    vocab_size: int
    dtype: Dtype
    max_position_embeddings: int
    spare_rows: int = 0
    numbers: tuple[int, ...] | None = None

    def layer(self, number: int) -> str:
        """Start of the tensor names of one layer, with the dot."""
        return f"{self.prefix}{self.layers}{number if self.numbers is None else self.numbers[number]}."


def read_layout(
    view: CheckpointView,
    *,
    prefixes: Sequence[str] = ("model.", ""),
    embeddings: Sequence[str] = ("embed_tokens.weight",),
    layers: str = "layers.",
    head: str = "lm_head.weight",
    tied_by_default: bool = False,
    prediction_layers: int = 0,
    default_max_position_embeddings: int = 4096,
    spare_rows: int = 0,
    cut_head_rows: int | None = None,
) -> DecoderLayout:
    """Find the prefix, count the layers, read the sizes of embedding and head.

    Args:
        prefixes: Candidates, in order of preference; within another model, what stands there comes before them.
        embeddings: Candidates for the embedding's name after the prefix.
        layers: What stands between the prefix and a layer's number.
        head: Name of the head's tensor.
        tied_by_default: Whether the head is the embedding when config.json doesn't say.
        prediction_layers: How many layers after config.json's number may be there for multi-token prediction
            (DeepSeek); they are left out.
        default_max_position_embeddings: When config.json has none.
        spare_rows: Rows of the embedding behind those of the vocabulary.
        cut_head_rows: How many rows the head may have instead of the vocabulary's, if it isn't padded like it.

    Raises:
        UnsupportedArchitecture: No embedding under any of the names.
        MissingTensor: Layers are missing from the sequence 0, 1, 2 …, or the head.
        TensorShapeMismatch: The embedding isn't a matrix, the head has another shape, or config.json contradicts them.
    """
    outer, prefix, embedding = _find_embedding(view.tensors, prefixes, embeddings)
    num_rows, hidden_size = matrix_shape(view.tensors, embedding)
    vocab_size = num_rows - spare_rows
    evidence = f"{embedding} has shape {[num_rows, hidden_size]}"
    check_size(view, hidden_size, evidence, "hidden_size")
    check_size(view, vocab_size, evidence, "vocab_size")
    num_layers, present = _count_layers(view, prefix + layers, prediction_layers)
    head_shapes = [(rows, hidden_size) for rows in (vocab_size, cut_head_rows) if rows is not None]
    found_head = _find_head(view, head, (prefix, outer), head_shapes, tied_by_default)
    dtype = _stored_dtype(view, embedding)
    max_positions = integer_with_evidence(
        view,
        "max_position_embeddings",
        CONTEXT_KEYS,
        default_max_position_embeddings,
        high=1 << 30,
    )
    beyond, sizes = present - num_layers, (hidden_size, vocab_size)
    return DecoderLayout(
        prefix, embedding, found_head, num_layers, beyond, layers, *sizes, dtype, max_positions, spare_rows
    )


def _find_embedding(tensors: TensorTable, prefixes: Sequence[str], embeddings: Sequence[str]) -> tuple[str, str, str]:
    """What stands before the text model's names, then that with its prefix, then the embedding's name."""
    found = [
        (o, o + p, o + p + e) for o in OUTER_PREFIXES for p in prefixes for e in embeddings if o + p + e in tensors
    ]
    if not found:
        expected = " or ".join(p + e for p in prefixes for e in embeddings)
        raise UnsupportedArchitecture(
            f"no embedding: {expected} is not among the {len(tensors)} tensors ({sample_of(tensors)}).", param=expected
        )
    return found[0]


def layer_numbers(tensors: TensorTable, prefix: str) -> list[int]:
    """The N of all ``{prefix}N.…`` names, sorted."""
    pattern = re.compile(re.escape(prefix) + r"(\d{1,6})\.")
    return sorted({int(match[1]) for match in map(pattern.match, tensors) if match})


def _count_layers(view: CheckpointView, prefix: str, prediction_layers: int) -> tuple[int, int]:
    """(layers of the model, layers in the files)."""
    numbers = layer_numbers(view.tensors, prefix)
    if not numbers:
        raise UnsupportedArchitecture(
            f"no layers: no tensor name starts with {prefix}0. ({sample_of(view.tensors)}).",
            param=prefix[:-1],
        )
    present = numbers[-1] + 1
    if present > MAX_LAYERS:
        raise CorruptCheckpoint(
            f"layer number {numbers[-1]} is out of range; at most {MAX_LAYERS} layers.", param="layers"
        )
    if len(numbers) != present:
        missing = min(set(range(present)) - set(numbers))
        raise MissingTensor(
            f"layer {missing} is missing: no tensor name starts with {prefix}{missing}., although layer "
            f"{numbers[-1]} is there.",
            param=f"{prefix}{missing}",
        )
    stated = view.config.optional_integer(*_LAYER_COUNT_KEYS, high=MAX_LAYERS)
    if stated is None or stated == present:
        evidence = "distinct layer numbers in the tensor names"
        view.facts.add("num_layers", present, evidence if stated is None else f"config.json and {evidence}")
        return present, present
    if stated > present:
        raise MissingTensor(
            f"config.json says {stated} layers, but the tensors end at layer {present - 1}; a shard is missing, or "
            "config.json is from another model.",
            param=f"{prefix}{present}",
        )
    if present > stated + prediction_layers:
        raise TensorShapeMismatch(
            f"config.json says {stated} layers{_beside(prediction_layers)}, but the tensors have {present} "
            f"({prefix}{stated} to {prefix}{present - 1}); correct {_LAYER_COUNT_KEYS[0]}.",
            param=_LAYER_COUNT_KEYS[0],
        )
    view.facts.add("num_layers", stated, "config.json; the layers after them are prediction modules, left out")
    return stated, present


def _beside(prediction_layers: int) -> str:
    return f" and {prediction_layers} for prediction" if prediction_layers else ""


def _find_head(
    view: CheckpointView, name: str, places: Sequence[str], shapes: Sequence[Shape], tied_by_default: bool
) -> str | None:
    """Name of the head's tensor, which may have one of ``places`` before it; None: the embedding is the head.

    Args:
        shapes: Those that it may have, the embedding's first.
    """
    config, facts, tensors = view.config, view.facts, view.tensors
    for place in places:
        if name not in tensors and place + name in tensors:
            name = place + name
    written = "tie_word_embeddings" in config
    tied = config.boolean("tie_word_embeddings", default=tied_by_default)
    if name not in tensors:
        confidence = Confidence.CERTAIN if tied else Confidence.HIGH
        stated = facts.add("tie_word_embeddings", tied or not written, f"there is no {name}", confidence)
        if not stated:
            raise MissingTensor(
                f"config.json says tie_word_embeddings false, but there is no {name}: the head is missing. If "
                "the head is the embedding, set the override tie_word_embeddings to true.",
                param=name,
            )
        return None
    evidence = "config.json" if written else f"{name} is there, and config.json says nothing else"
    if facts.add("tie_word_embeddings", tied, evidence, Confidence.CERTAIN if written else Confidence.MEDIUM):
        return None
    if tensors.shape(name) not in shapes:
        raise TensorShapeMismatch(
            f"{name} has shape {list(tensors.shape(name))}, but the embedding needs {list(shapes[0])}.",
            param=name,
        )
    return name


def _stored_dtype(view: CheckpointView, embedding: str) -> Dtype:
    stored = view.tensors[embedding].dtype
    if stored not in STORED_DTYPES:
        raise UnsupportedFormat(
            f"{embedding} is stored as {stored}; {', '.join(STORED_DTYPES)} can be read.", param=embedding
        )
    dtype = STORED_DTYPES[stored]
    view.facts.add("dtype", dtype, f"{embedding} is stored as {stored}")
    return dtype
