"""Choose the parts of a network that get a form of their own, and the forms that each can have.

A part is one matrix of the network (q, k and v of a layer are one, so are gate and up), or both stacks of a layer's
experts, which one call of the kernels multiplies. Recurrent parameters, routers, norms and convolutions are no parts:
they stay as they are stored, and so do matrices whose sizes don't fill bytes or blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from inference.errors import UnsupportedFormat
from inference.llm.checkpoint_writing import HEADER_BYTES, num_shards
from inference.llm.quantising.source import NUM_COLUMNS, SourceTensor
from inference.modelling.encodings.blazr import OFFSETS, SCALES, STORED_DTYPES
from inference.modelling.quantisation import BLOCK_ROWS, OWN_FORMS, FormName, coded_bytes, is_quantisable
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Shape
from inference.modelling.specs.sources import Piece

KINDS: tuple[FormName, ...] = tuple(OWN_FORMS)
"""The forms that are tried, the smallest first."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Parameters that share a form.

    Attributes:
        name: Name of the parameter, or of the module of the experts.
        parameters: Names and shapes of its parameters.
        layer: Number of its layer; -1: the embedding; the number of layers: the head.
        stored_bytes: Bytes if it isn't rounded, entries in the header included.
        sizes: Bytes in each form, entries in the header included.
    """

    name: str
    parameters: Mapping[str, Shape]
    layer: int
    stored_bytes: int
    sizes: Mapping[FormName, int]

    @property
    def num_weights(self) -> int:
        """Number of weights of all its parameters."""
        return sum(map(math.prod, self.parameters.values()))


def find_parts(spec: ModelSpec, tensors: Mapping[str, SourceTensor]) -> list[Part]:
    """Return the parts of a checkpoint, in the order of the layers.

    Args:
        spec: Specification of the checkpoint.
        tensors: Its tensors.

    Raises:
        UnsupportedFormat: Nothing of it can be quantised.
    """
    shapes = spec.parameter_shapes()
    uses = Counter(name for source in spec.parameters.values() for name in source.tensor_names())
    grouped: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        if not is_quantisable(name, shape) or shape[-1] % NUM_COLUMNS:
            continue
        source = spec.parameters[name]
        is_plain = all(piece == Piece(piece.name) for piece in source.pieces)
        is_matrix = all(
            len(tensors[tensor].shape) in (2, 3)
            and tensors[tensor].shape[-1] == shape[-1]
            and uses[tensor] == 1
            and tensors[tensor].dtype in STORED_DTYPES.values()
            # Experts are packed one below the other, in whole blocks.
            and (len(shape) == 2 or tensors[tensor].shape[-2] % BLOCK_ROWS == 0)
            for tensor in source.tensor_names()
        )
        if is_plain and is_matrix:
            stack = name.rpartition(".")[0]
            grouped.setdefault(stack if len(shape) == 3 else name, {})[name] = shape
    parts = [_part(name, its_shapes, spec, tensors) for name, its_shapes in grouped.items()]
    if not parts:
        raise UnsupportedFormat("no matrix of the checkpoint is large enough to be quantised.", param="model")
    return sorted(parts, key=lambda part: part.layer)


def fixed_bytes(parts: list[Part], tensors: Mapping[str, SourceTensor]) -> int:
    """Return the bytes of written files that no plan changes: unquantised tensors, and the headers."""
    total = sum(_stored_bytes(name, tensor) for name, tensor in tensors.items())
    shards = num_shards({name: tensor.size_bytes for name, tensor in tensors.items()})
    return total + 2 * shards * HEADER_BYTES - sum(part.stored_bytes for part in parts)


def _stored_bytes(name: str, tensor: SourceTensor) -> int:
    """Return the bytes of a tensor that isn't rounded anew, entries in the header included."""
    entries = 1 if tensor.form is None else 3 if tensor.form.has_offset else 2
    return tensor.size_bytes + entries * (HEADER_BYTES + len(name) + (len(OFFSETS) if tensor.form else 0))


def _part(name: str, shapes: dict[str, Shape], spec: ModelSpec, tensors: Mapping[str, SourceTensor]) -> Part:
    names = [tensor for parameter in shapes for tensor in spec.parameters[parameter].tensor_names()]
    entries = sum(2 * (HEADER_BYTES + len(tensor) + len(SCALES)) for tensor in names)
    return Part(
        name,
        shapes,
        _layer(name, len(spec.layers)),
        sum(_stored_bytes(tensor, tensors[tensor]) for tensor in names),
        {kind: entries + sum(coded_bytes(shape, OWN_FORMS[kind]) for shape in shapes.values()) for kind in KINDS},
    )


def _layer(name: str, num_layers: int) -> int:
    if name.startswith("layers."):
        return int(name.split(".")[1])
    return -1 if name.startswith("embed_tokens") else num_layers
