"""CheckpointTensor: a tensor as the checkpoint had it before conversion, put together from stored rows.

Only places and steps are here; ``weights/gguf_reader.py`` carries them out. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.gguf.block_types import BLOCK_TYPES
from inference.modelling.gguf.container import GgufTensor
from inference.modelling.gguf.parts import GgufParts

Folded = Literal["", "plus_one", "negative_exp", "exp"]
"""What the converter did to the values: added 1 (norms of Gemma), or took -exp (A_log of Mamba) or exp (of Ling)."""

How = Literal[
    "", "rotary", "rotary_kv", "rotary_norm", "norm", "a_log", "a_log_vector", "exp_vector", "vector", "conv", "row",
    "experts", "expert_halves", "join", "join_experts", "take_turns", "latent", "beta_alpha", "fused_qkv",
    "fused_rotary", "head_norms",
]  # fmt: skip

Order = Literal["", "rows", "last_rows", "columns"]
"""What of a tensor belongs to the value heads of a delta rule: all rows, the last ones, or the columns."""

MAX_PIECES = 1 << 18
"""Experts' matrices and heads' rows in all layers; the largest models have 73,000."""
CODE_GROUP = 32
"""Values that share a scale in any type of blocks, or a multiple of them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that lie one behind the other in a file.

    Attributes:
        part: Number of the file.
        type: A number of ``BLOCK_TYPES``.
        begin: Their first byte.
        rows: How many.
        columns: Values of each, whole blocks.
        transposed: They are columns of the tensor: ``columns`` rows of ``rows`` values.
        factor: (number of a file, byte) of a float32 that the values are multiplied by; None: they are right as stored.
    """

    part: int
    type: int
    begin: int
    rows: int
    columns: int
    transposed: bool = False
    factor: tuple[int, int] | None = None

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        kind = BLOCK_TYPES[self.type]
        return self.columns // kind.values * kind.num_bytes


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """How a tensor is put together.

    Attributes:
        shape: As the checkpoint had it.
        segments: One below the other.
        head_rows: Rows of a head whose rotary pairs became neighbours: (2, rows / 2) was transposed; 0: none did.
        folded: What is undone in the values.
        column_heads: (r, k): the columns are r times k heads, and should be k times r; (1, 1): they stay.
        takes_turns: Each two segments are one piece, whose rows are theirs in turns: one of the first, one of the
            second.
    """

    shape: tuple[int, ...]
    segments: tuple[Segment, ...]
    head_rows: int = 0
    folded: Folded = ""
    column_heads: tuple[int, int] = (1, 1)
    takes_turns: bool = False

    @property
    def type_name(self) -> str:
        """Name of the type that it is stored in; the first one's if there are several, GGUF's of an older layout."""
        return BLOCK_TYPES[self.segments[0].type].form_name

    @property
    def code_type(self) -> str | None:
        """Name of the type of all its blocks, if its values are those of the blocks; None: they aren't."""
        kinds = {segment.type for segment in self.segments}
        if len(kinds) != 1 or self.folded or any(segment.transposed for segment in self.segments):
            return None
        if self.column_heads != (1, 1) and self.shape[-1] // math.prod(self.column_heads) % CODE_GROUP:
            return None
        return self.type_name

    @property
    def keeps_blocks(self) -> bool:
        """Whether the inputs of a block stay together, and what they share as it is."""
        return self.column_heads == (1, 1) and not any(segment.factor for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Rename:
    """A stored tensor of each layer and the tensor that it was.

    Attributes:
        stored: Its name behind ``blk.N.``; several names: they are put together.
        target: The name behind the layer's prefix; ``{e}``: number of the expert, or which of several parts.
        how: What has to be undone.
        order: What has the order of ``DeltaHeads`` that the converter gives it.
    """

    stored: str | tuple[str, ...]
    target: str
    how: How = ""
    order: Order = ""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of a layer: of queries, and of keys."""

    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """Heads of a delta rule, the same in all its layers.

    In a checkpoint the value heads of a key head are neighbours. Where a ``Rename`` has an order, the converter has put
    the first ones of all key heads first, then all second ones.

    Attributes:
        keys: Heads of keys.
        values: Heads of values, a multiple of ``keys``.
        width: Of all values together.
    """

    keys: int
    values: int
    width: int


def checkpoint_tensors(
    parts: GgufParts,
    outer: Mapping[str, tuple[str, How]],
    layers: Iterable[Rename],
    *,
    prefix: str,
    num_layers: int,
    heads: Mapping[int, Heads],
    delta: DeltaHeads | None = None,
    unused: Iterable[str] = (),
) -> dict[str, CheckpointTensor]:
    """All tensors under the names of the checkpoint.

    Args:
        parts: The file.
        outer: Stored names outside of layers, to name and step.
        layers: What each layer can have.
        prefix: What stands before the number of a layer.
        num_layers: Number of layers.
        heads: By number of the layer.
        delta: Heads of the layers with a delta rule.
        unused: Stored names that the config holds.

    Raises:
        UnsupportedArchitecture: A stored tensor has no place.
        TensorShapeMismatch: A tensor has a shape that its step can't undo.
        CorruptCheckpoint: There are more than ``MAX_PIECES`` pieces.
    """
    rows = tuple(layers)
    scales = frozenset(row.stored for row in rows if isinstance(row.stored, str) and row.stored.endswith(".scale"))
    left = set(parts.tensors) - set(unused)
    found: dict[str, CheckpointTensor] = {}
    pieces = 0
    for stored, (target, how) in outer.items():
        if stored in parts.tensors:
            left.difference_update(_with_scales((stored,)))
            found |= _scaled((stored,), parts, _undone((stored,), parts, target, how, None, None))
    for number in range(num_layers):
        for row in rows:
            names = tuple(
                f"blk.{number}.{name}" for name in ((row.stored,) if isinstance(row.stored, str) else row.stored)
            )
            if all(name in parts.tensors for name in names):
                kept = {f"blk.{number}.{name}" for name in scales}
                left.difference_update(set(_with_scales(names)) - kept | set(names))
                pieces = _more_pieces(pieces, names[0], parts, row, delta)
                undone = _undone(names, parts, f"{prefix}{number}.{row.target}", row.how, heads.get(number), delta)
                if row.order and delta is not None:
                    undone = {name: _reordered(names[0], item, row.order, delta) for name, item in undone.items()}
                found |= _scaled(names, parts, undone, kept)
    if left:
        shown = ", ".join(sorted(left)[:5]) + (", …" if len(left) > 5 else "")
        raise UnsupportedArchitecture(
            f"{len(left)} tensors have no place in this architecture as it is read here: {shown}. Without them the "
            "model would compute something else.",
            param=min(left),
        )
    return found


def _with_scales(names: Iterable[str]) -> Iterator[str]:
    """Names of tensors, and of the scales beside weights: of the weights, and of inputs, which aren't quantised."""
    for name in names:
        yield name
        if name.endswith(".weight"):
            base = name.removesuffix("weight")
            yield from (f"{base}scale", f"{base}input_scale")


def _scaled(
    names: tuple[str, ...],
    parts: GgufParts,
    undone: dict[str, CheckpointTensor],
    kept: Collection[str] = (),
) -> dict[str, CheckpointTensor]:
    """With the factors of NVFP4: one for each weight, or for each expert of a stack; those ``kept`` are tensors."""
    for name in names:
        beside = f"{name.removesuffix('weight')}scale"
        found = parts.tensors.get(beside) if name.endswith(".weight") and beside not in kept else None
        if found is None:
            continue
        stored, scale = parts.tensors[name], found[1]
        place = stored[1]
        count = math.prod(scale.shape)
        if scale.block_type.name != "F32" or count not in (1, place.shape[0] if len(place.shape) == 3 else 1):
            raise TensorShapeMismatch(
                f"{name.removesuffix('weight')}scale is stored as {scale.block_type.name} with shape "
                f"{list(scale.shape)}; one float32 is needed, or one for each expert of {name}.",
                param=name,
            )
        for key, item in undone.items():
            pieces = tuple(part for piece in item.segments for part in _with_factor(piece, stored, found, count))
            undone[key] = replace(item, segments=pieces)
    return undone


def _with_factor(
    piece: Segment, stored: tuple[int, GgufTensor], scales: tuple[int, GgufTensor], count: int
) -> Iterator[Segment]:
    """A piece of ``stored`` with the factors of its experts, ``count`` of which the tensor has; others as they are."""
    (number, place), (file, factors) = stored, scales
    if piece.part != number or not place.begin <= piece.begin < place.end:
        yield piece
        return
    size = (place.end - place.begin) // count
    experts = max(1, piece.rows * piece.row_bytes // size)  # a stack that stays one, or a part of an expert
    for number in range(experts):
        rows = piece.rows // experts
        part = _rows(piece, number * rows, rows)
        yield replace(part, factor=(file, factors.begin + 4 * ((part.begin - place.begin) // size)))


def _more_pieces(pieces: int, name: str, parts: GgufParts, row: Rename, delta: DeltaHeads | None) -> int:
    """So many pieces and those of one more tensor."""
    if row.how in ("experts", "expert_halves", "join_experts", "take_turns", "latent", "head_norms"):
        pieces += parts.tensors[name][1].shape[0]
    elif delta is not None and (row.order or row.how == "beta_alpha"):
        pieces += delta.values
    if pieces > MAX_PIECES:
        raise CorruptCheckpoint(
            f"{name} and those before it are put together from {pieces} experts and heads; the limit is {MAX_PIECES}.",
            param=name,
        )
    return pieces


def _undone(
    names: tuple[str, ...], parts: GgufParts, target: str, how: How, heads: Heads | None, delta: DeltaHeads | None
) -> dict[str, CheckpointTensor]:
    stored = [parts.tensors[name] for name in names]
    number, place = stored[0]
    whole = _segment(number, place)
    if how == "experts":
        return _experts(names[0], number, place, target)
    if how == "expert_halves":
        return _expert_halves(names[0], number, place, target)
    if how == "beta_alpha":
        return _beta_and_alpha(names[0], place, whole, target, delta)
    if how in ("fused_qkv", "fused_rotary"):
        return _queries_keys_values(names[0], place, whole, target, heads, rotary=how == "fused_rotary")
    if how == "head_norms":
        return _head_norms(names[0], place, whole, target)
    if how == "join":
        _same_columns(names, [item for _, item in stored])
        segments = tuple(_segment(*item) for item in stored)
        shape = (sum(item.shape[0] for _, item in stored), *place.shape[1:])
        return {target: CheckpointTensor(shape, segments)}
    if how == "join_experts":
        return {target: _joined_experts(names, stored)}
    if how == "take_turns":
        return {target: _gates_and_ups(names, stored)}
    if how == "latent":
        return {target: _latent(names, stored)}
    if how in ("rotary", "rotary_kv", "rotary_norm"):
        counts = {"rotary": heads.queries, "rotary_kv": heads.keys, "rotary_norm": 1} if heads is not None else {}
        count = counts.get(how, 0)
        if not count or place.shape[0] % (2 * count):
            raise TensorShapeMismatch(
                f"{names[0]} has {place.shape[0]} rows, which {count} heads of an even width don't give.",
                param=names[0],
            )
        return {target: CheckpointTensor(place.shape, (whole,), head_rows=place.shape[0] // count)}
    shape = place.shape
    if how == "conv":
        shape = (math.prod(place.shape[:-1]), 1, place.shape[-1])
    elif how in ("vector", "a_log_vector", "exp_vector"):
        shape = (math.prod(place.shape),)
    elif how == "row":
        shape = (1, math.prod(place.shape))
    if how in ("a_log", "a_log_vector"):
        return {target: CheckpointTensor(shape, (whole,), folded="negative_exp")}
    if how == "exp_vector":
        return {target: CheckpointTensor(shape, (whole,), folded="exp")}
    if how == "norm":
        return {target: CheckpointTensor(shape, (whole,), folded="plus_one")}
    return {target: CheckpointTensor(shape, (whole,))}


def _segment(number: int, place: GgufTensor) -> Segment:
    if len(place.shape) == 1 and place.block_type.values == 1:
        return Segment(number, place.type, place.begin, place.shape[0], 1)  # a bias has rows, as its matrix has
    return Segment(number, place.type, place.begin, math.prod(place.shape[:-1]), place.shape[-1])


def _experts(name: str, number: int, place: GgufTensor, target: str) -> dict[str, CheckpointTensor]:
    """A stack (E, rows, columns) as E matrices."""
    if len(place.shape) != 3:
        raise TensorShapeMismatch(f"{name} has shape {list(place.shape)}; three axes are needed.", param=name)
    count, rows, columns = place.shape
    size = (place.end - place.begin) // count
    return {
        target.replace("{e}", str(expert)): CheckpointTensor(
            (rows, columns), (Segment(number, place.type, place.begin + expert * size, rows, columns),)
        )
        for expert in range(count)
    }


def _expert_halves(name: str, number: int, place: GgufTensor, target: str) -> dict[str, CheckpointTensor]:
    """A stack (E, 2 · rows, columns) as the gates and the ups of E experts; ``target`` ends in the gates' name."""
    found: dict[str, CheckpointTensor] = {}
    for expert, both in _experts(name, number, place, target).items():
        rows, columns = both.shape
        if rows % 2:
            raise TensorShapeMismatch(f"{name} has {rows} rows for each expert; an even number is needed.", param=name)
        for half, part in enumerate(("gate", "up")):
            piece = _rows(both.segments[0], half * (rows // 2), rows // 2)
            found[expert.replace("gate_proj", f"{part}_proj")] = CheckpointTensor((rows // 2, columns), (piece,))
    return found


def _beta_and_alpha(
    name: str, place: GgufTensor, whole: Segment, target: str, delta: DeltaHeads | None
) -> dict[str, CheckpointTensor]:
    """Rows of β and of α for each key head as two tensors, whose names have ``b`` and ``a`` for ``{e}``."""
    if delta is None or whole.rows != 2 * delta.values or delta.values % delta.keys:
        heads = "no heads" if delta is None else f"{delta.values} heads of values for {delta.keys} of keys"
        raise TensorShapeMismatch(f"{name} has {whole.rows} rows, which {heads} don't give.", param=name)
    count = delta.values // delta.keys
    return {
        target.replace("{e}", part): CheckpointTensor(
            (delta.values, *place.shape[1:]),
            tuple(_rows(whole, (2 * head + second) * count, count) for head in range(delta.keys)),
        )
        for second, part in enumerate(("b", "a"))
    }


def _queries_keys_values(
    name: str, place: GgufTensor, whole: Segment, target: str, heads: Heads | None, *, rotary: bool
) -> dict[str, CheckpointTensor]:
    """Rows of queries, of keys and of values as three tensors, whose names have ``q``, ``k`` and ``v`` for ``{e}``.

    With ``rotary``, the pairs of queries and keys became neighbours.
    """
    counts = (0, 0, 0) if heads is None else (heads.queries, heads.keys, heads.keys)
    if not sum(counts) or whole.rows % (sum(counts) * (2 if rotary else 1)):
        raise TensorShapeMismatch(
            f"{name} has {whole.rows} rows, which heads of queries, keys and values ({counts}) don't give.", param=name
        )
    found: dict[str, CheckpointTensor] = {}
    first, width = 0, whole.rows // sum(counts)
    for letter, count in zip("qkv", counts, strict=True):
        rows = count * width
        found[target.replace("{e}", letter)] = CheckpointTensor(
            (rows, *place.shape[1:]),
            (_rows(whole, first, rows),),
            head_rows=width if rotary and letter != "v" else 0,
        )
        first += rows
    return found


def _head_norms(name: str, place: GgufTensor, whole: Segment, target: str) -> dict[str, CheckpointTensor]:
    """A stack (heads, width) as the weights of each head's norm."""
    if len(place.shape) != 2:
        raise TensorShapeMismatch(f"{name} has shape {list(place.shape)}; two axes are needed.", param=name)
    count, width = place.shape
    return {
        target.replace("{e}", str(head)): CheckpointTensor((width,), (_rows(whole, head, 1),)) for head in range(count)
    }


def _reordered(name: str, tensor: CheckpointTensor, order: Order, delta: DeltaHeads) -> CheckpointTensor:
    """With the value heads of a key head beside each other again."""
    keys, repeats = delta.keys, delta.values // delta.keys
    first, *others = tensor.segments
    count = first.columns if order == "columns" else first.rows
    kept = count - delta.width if order == "last_rows" else 0
    if delta.values % keys or others or kept < 0 or (count - kept) % delta.values:
        raise TensorShapeMismatch(
            f"{name} has shape {list(tensor.shape)}, which {delta.values} heads of values for {keys} of keys don't "
            "give.",
            param=name,
        )
    if repeats == 1:
        return tensor
    if order == "columns":
        return replace(tensor, column_heads=(repeats, keys))
    rows = (count - kept) // delta.values
    segments = [_rows(first, 0, kept)] if kept else []
    segments += [
        _rows(first, kept + (place * keys + head) * rows, rows) for head in range(keys) for place in range(repeats)
    ]
    return replace(tensor, segments=tuple(segments))


def _rows(segment: Segment, first: int, count: int) -> Segment:
    return replace(segment, begin=segment.begin + first * segment.row_bytes, rows=count)


def _joined_experts(names: tuple[str, ...], stored: list[tuple[int, GgufTensor]]) -> CheckpointTensor:
    """Stacks (E, rows, columns) as one (E, all rows, columns)."""
    stacks = [_experts(name, *item, "{e}") for name, item in zip(names, stored, strict=True)]
    _same_columns(names, [item for _, item in stored])
    count = len(stacks[0])
    if any(len(stack) != count for stack in stacks):
        raise TensorShapeMismatch(f"{' and '.join(names)} have different numbers of experts.", param=names[0])
    segments = tuple(stack[str(expert)].segments[0] for expert in range(count) for stack in stacks)
    rows = sum(item.shape[1] for _, item in stored)
    return CheckpointTensor((count, rows, stored[0][1].shape[2]), segments)


def _gates_and_ups(names: tuple[str, ...], stored: list[tuple[int, GgufTensor]]) -> CheckpointTensor:
    """Two stacks (E, rows, columns), or biases (E, rows), as one whose rows are theirs in turns."""
    (first, gates), (second, ups) = stored
    if gates.shape != ups.shape or not 2 <= len(gates.shape) <= 3:
        raise TensorShapeMismatch(
            f"{' and '.join(names)} have shapes {list(gates.shape)} and {list(ups.shape)}; equal ones of two or three "
            "axes are needed.",
            param=names[0],
        )
    count, rows, *columns = gates.shape
    if not columns and {gates.block_type.values, ups.block_type.values} != {1}:
        raise TensorShapeMismatch(f"{' and '.join(names)} are biases in codes; floats are needed.", param=names[0])
    segments = tuple(
        Segment(number, place.type, place.begin + expert * ((place.end - place.begin) // count), rows, *columns or (1,))
        for expert in range(count)
        for number, place in ((first, gates), (second, ups))
    )
    return CheckpointTensor((count, 2 * rows, *columns), segments, takes_turns=True)


def _latent(names: tuple[str, ...], stored: list[tuple[int, GgufTensor]]) -> CheckpointTensor:
    """DeepSeek's kv_b_proj (heads · (k + v), latent) from k (heads, latent, k) and v (heads, v, latent)."""
    (_, keys), (_, values) = stored
    fits = len(keys.shape) == len(values.shape) == 3
    if not fits or keys.shape[0] != values.shape[0] or keys.shape[1] != values.shape[2]:
        raise TensorShapeMismatch(
            f"{' and '.join(names)} have shapes {list(keys.shape)} and {list(values.shape)}; (heads, latent, width) "
            "and (heads, width, latent) are needed.",
            param=names[0],
        )
    heads, latent, key_width = keys.shape
    key_parts = _experts(names[0], *stored[0], "{e}")
    value_parts = _experts(names[1], *stored[1], "{e}")
    segments: list[Segment] = []
    for head in range(heads):
        piece = key_parts[str(head)].segments[0]
        segments.append(Segment(piece.part, piece.type, piece.begin, piece.rows, piece.columns, transposed=True))
        segments.append(value_parts[str(head)].segments[0])
    return CheckpointTensor((heads * (key_width + values.shape[1]), latent), tuple(segments))


def _same_columns(names: tuple[str, ...], places: list[GgufTensor]) -> None:
    if len({place.shape[-1] for place in places}) != 1 or len({len(place.shape) for place in places}) != 1:
        shapes = " and ".join(str(list(place.shape)) for place in places)
        raise TensorShapeMismatch(
            f"{' and '.join(names)} have shapes {shapes}; they can't be put together.", param=names[0]
        )
