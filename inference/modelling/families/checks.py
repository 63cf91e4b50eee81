"""Check the shape of each source against the shape of its parameter, from headers alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.families.config import CheckpointView, TensorTable
from inference.modelling.families.headers import STORED_DTYPES, sample_of
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Shape
from inference.modelling.specs.sources import Piece, Source

TIED_HEAD = re.compile(r"((model|backbone|(model\.)?language_model)\.)?lm_head\.weight")
"""Names of a stored head; beside a tied embedding it is a copy, which the inspection compares."""


@dataclass(frozen=True, slots=True)
class IgnoredTensors:
    """Tensors that a family leaves out on purpose.

    Attributes:
        reason: Why the arithmetic doesn't need them.
    """

    names: re.Pattern[str]
    reason: str


ROTARY_BUFFERS = IgnoredTensors(
    re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$"),
    "computed from the rope keys of config.json; early exports stored them",
)
MASK_BUFFERS = IgnoredTensors(
    re.compile(r"(^|\.)(position_ids|masked_bias)$"), "constants of positions and masks; early exports stored them"
)
DRAFTS = IgnoredTensors(
    re.compile(r"(^|\.)mtp(_\w+)?\."), "layers for drafting several tokens, beside the model itself"
)


def record_drafts(view: CheckpointView) -> None:
    """Note the tensors of ``DRAFTS`` that are there, which ``finish`` leaves out."""
    count = sum(bool(DRAFTS.names.search(name)) for name in view.tensors)
    if count:
        view.facts.add("prediction_layers", "left out", f"{count} tensors of layers for drafting several tokens")


OTHER_PARTS = IgnoredTensors(
    re.compile(
        r"^(model\.|thinker\.)?(visual|visual_embeddings_table|vision_(tower|backbone|adapter|model|embedder|embed_tokens|encoder|projection"
        r"|projector)|image_(tower|newline)|video_tower|high_res_vision_\w+|vqmodel|generation_(embeddings|aligner|head)"
        r"|audio(_tower|_encoder)?|encoder|embed_vision|embed_audio|multi_modal_projector|mm_projector|patch_merge_mlp"
        r"|mlp1|mlp_AR|vit|vit_large_projector"
        r"|layerwise_projectors|spatial_projectors|resampler_model|sam_model|qwen2_model|view_sep[ae]rator|connector"
        r"|aligner|merger|patch_merger|projector|pre_mm_projector_norm|vision_language_adapter|talker|token2wav|code2wav"
        r")(\.|$)"
    ),
    "the encoders of pictures and sound, which aren't read",
)


def finish(view: CheckpointView, spec: ModelSpec, *, ignored: Sequence[IgnoredTensors] = ()) -> ModelSpec:
    """Check the finished spec against the headers: every tensor is used, or ignored for a reason.

    Args:
        ignored: Tensors that the family leaves out on purpose. Of a text model within another one, the other parts are
            left out too.

    Raises:
        MissingTensor: A tensor that a parameter is made of isn't there.
        TensorShapeMismatch: A parameter would have another shape than the spec needs.
        UnsupportedFormat: A tensor is stored in a dtype that isn't read.
        UnsupportedArchitecture: A tensor has no place in the spec.
    """
    shapes = spec.parameter_shapes()
    assert shapes.keys() == spec.parameters.keys(), sorted(shapes.keys() ^ spec.parameters.keys())
    read: set[str] = set()
    readable = readable_dtypes(spec)
    for name, expected in shapes.items():
        source = spec.parameters[name]
        found = source_shape(source, view.tensors)
        names = list(source.tensor_names())
        if found != expected:
            raise TensorShapeMismatch(
                f"{' + '.join(names[:3])}{' …' if len(names) > 3 else ''} has shape {list(found)}, but config.json and "
                f"the other tensors ask for {list(expected)} ({name}).",
                param=names[0],
            )
        for item in names:
            if view.tensors[item].dtype not in readable(name):
                raise UnsupportedFormat(
                    f"{item} is stored as {view.tensors[item].dtype}; {', '.join(readable(name))} can be read.",
                    param=item,
                )
        read.update(names)
    groups = (*ignored, OTHER_PARTS) if view.is_part else ignored
    left = [
        name
        for name in view.tensors
        if name not in read
        and not any(group.names.search(name) for group in groups)
        and not (spec.tie_word_embeddings and TIED_HEAD.fullmatch(name))
    ]
    if left:
        raise UnsupportedArchitecture(
            f"{len(left)} tensors have no place in {spec.model_type}: {sample_of(left)}. Without them the model would "
            "compute something else; a head of another task or a value head can be removed from the file.",
            param=min(left),
        )
    return spec


def readable_dtypes(spec: ModelSpec) -> Callable[[str], Collection[str]]:
    """A function from a parameter's name to the dtypes, in safetensors' spelling, that it can be stored in."""
    integers = spec.integer_parameters()
    return lambda parameter: ("I64", "I32") if parameter in integers else STORED_DTYPES


def source_shape(source: Source, tensors: TensorTable) -> Shape:
    """The shape that a source gives, from headers alone; the steps are those of ``Piece``.

    Raises:
        MissingTensor: A tensor isn't there.
        TensorShapeMismatch: A step doesn't fit the tensor, or the pieces don't fit each other.
    """
    names = list(source.tensor_names())
    for name in names:
        tensors.shape(name)
    first: Shape | None = None
    for expert in range(source.num_experts or 1):
        number = None if source.num_experts is None else expert
        shapes = [_piece_shape(piece, tensors, number, source.num_experts) for piece in source.pieces]
        if any(shape[1:] != shapes[0][1:] or not shape for shape in shapes) and len(shapes) > 1:
            raise TensorShapeMismatch(
                f"{' and '.join(names[: len(shapes)])} have shapes {' and '.join(str(list(s)) for s in shapes)}; they "
                "can't be put together.",
                param=names[0],
            )
        found = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
        if first is not None and found != first:
            raise TensorShapeMismatch(
                f"expert {expert} has shape {list(found)} where expert 0 has {list(first)} ({source.pieces[0].name}).",
                param=source.pieces[0].name,
            )
        first = found
    assert first is not None
    return first if source.num_experts is None else (source.num_experts, *first)


def _piece_shape(piece: Piece, tensors: TensorTable, expert: int | None, num_experts: int | None) -> Shape:
    name = piece.name if expert is None else piece.name.replace("{e}", str(expert))
    shape = tensors.shape(name)
    bad = TensorShapeMismatch(f"{name} has shape {list(shape)}, which its use doesn't allow.", param=name)
    if piece.parts is not None:
        if not shape or shape[0] % piece.parts:
            raise bad
        shape = (piece.parts, shape[0] // piece.parts, *shape[1:])
    if piece.index is not None:
        index = expert if piece.index == -1 and expert is not None else piece.index
        if len(shape) < 2 or not 0 <= index < shape[0]:
            raise bad
        if piece.index == -1 and shape[0] != num_experts:
            raise TensorShapeMismatch(
                f"{name} is a stack of {shape[0]} matrices for {num_experts} experts, as config.json and the other "
                "tensors count them; all of these must agree.",
                param=name,
            )
        shape = shape[1:]
    if piece.transpose:
        if len(shape) < 2:
            raise bad
        shape = (*shape[:-2], shape[-1], shape[-2])
    if piece.rows is not None:
        if not shape or not 0 <= piece.rows[0] < piece.rows[1] <= shape[0]:
            raise bad
        shape = (piece.rows[1] - piece.rows[0], *shape[1:])
    if piece.per_group is not None:
        size, begin, end = piece.per_group
        if not shape or shape[0] % size:
            raise bad
        shape = (shape[0] // size * (end - begin), *shape[1:])
    if piece.stride is not None:
        if not shape:
            raise bad
        shape = (len(range(piece.stride[0], shape[0], piece.stride[1])), *shape[1:])
    if piece.reshape is not None:
        if math.prod(piece.reshape) != math.prod(shape):
            raise bad
        shape = piece.reshape
    return shape
