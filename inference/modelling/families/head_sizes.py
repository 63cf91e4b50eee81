"""Find the number and width of attention heads from the projections and config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView, Confidence
from inference.modelling.families.config_values import check_size, override_checked
from inference.modelling.families.headers import matrix_shape

_HEADS_KEYS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads")
_KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "num_attention_groups")
_MAX_HEADS = 1 << 16
"""Bound of head counts and widths alike."""


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Query heads, key/value heads, and the width of each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_heads(
    view: CheckpointView,
    layer: str,
    *,
    attention: str = "self_attn.",
    default_head_dim: int | None = None,
    has_gate: bool = False,
    output: str = "o_proj",
    q_norm: str = "q_norm",
) -> HeadSizes:
    """Head counts and width, from config.json and from the projections of one attention layer.

    config.json may not contradict the shapes. A width that neither has is a usual one that divides the rows, recorded
    with low confidence.

    Args:
        layer: Start of the layer's tensor names, with the dot.
        attention: The attention's part of the names, with the dot.
        default_head_dim: The family's width when config.json has none (h / heads otherwise).
        output: Name of the projection behind the attention.
        q_norm: Name of the queries' norm, whose length shows the width of a head.
        has_gate: Whether ``q_proj`` has a gate of the output beside each head's query.

    Raises:
        TensorShapeMismatch: The projections don't have the heads, or the width, that config.json states.
        UnsupportedArchitecture: No way to know the head count.
    """
    base = layer + attention
    fused = base + "qkv_proj.weight"
    if fused in view.tensors:
        return _fused_heads(view, fused, base, output, default_head_dim)
    q_rows = matrix_shape(view.tensors, base + "q_proj.weight")[0] // (2 if has_gate else 1)
    k_rows = matrix_shape(view.tensors, base + "k_proj.weight")[0]
    head_dim = _head_dim(view, base, q_norm, q_rows, k_rows, default_head_dim)
    if q_rows % head_dim or k_rows % head_dim:
        raise TensorShapeMismatch(
            f"head_dim {head_dim} divides neither evenly: {base}q_proj.weight has {q_rows} rows, k_proj {k_rows}.",
            param=base + "q_proj.weight",
        )
    heads = _agreed(view, "attention.num_heads", _HEADS_KEYS, q_rows // head_dim, "q_proj")
    kv_heads = _agreed(view, "attention.num_kv_heads", _KV_HEADS_KEYS, k_rows // head_dim, "k_proj")
    return checked_heads(HeadSizes(heads, kv_heads, head_dim), base)


def with_default_heads(view: CheckpointView, count: int) -> CheckpointView:
    """The checkpoint with so many query heads, where config.json doesn't state their number."""
    return view if view.config.get(*_HEADS_KEYS) is not None else view.changed(**{_HEADS_KEYS[0]: count})


def read_fused_heads(view: CheckpointView, rows: int, kv_heads: int | None = None) -> HeadSizes:
    """Heads of a projection of ``rows`` rows for q, k and v, as many heads as config.json says.

    Args:
        kv_heads: Heads of keys and of values; None: as many as of queries.

    Raises:
        TensorShapeMismatch: The rows can't be divided so.
    """
    heads = view.config.integer(*_HEADS_KEYS, high=_MAX_HEADS)
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads or rows % (heads + 2 * kv_heads):
        raise TensorShapeMismatch(
            f"config.json says {heads} attention heads, but {rows} rows can't be divided among the q, k and v of "
            f"{'each' if kv_heads == heads else f'them, with {kv_heads} heads of k and v'}.",
            param=_HEADS_KEYS[0],
        )
    head_dim = rows // (heads + 2 * kv_heads)
    view.facts.add("attention.num_heads", heads, "config.json")
    view.facts.add("attention.head_dim", head_dim, f"{rows} rows of q, k and v of {heads} heads")
    return HeadSizes(heads, kv_heads, head_dim)


def _head_dim(view: CheckpointView, base: str, q_norm: str, q_rows: int, k_rows: int, default: int | None) -> int:
    config, facts = view.config, view.facts
    name = "attention.head_dim"
    norm = view.tensors.get(f"{base}{q_norm}.weight")
    heads = config.optional_integer(*_HEADS_KEYS, high=_MAX_HEADS)
    stated = config.optional_integer("head_dim", high=_MAX_HEADS)
    if name in facts.overrides:
        given = facts.add(name, None, "")
        return int(override_checked(name, given, low=1, high=_MAX_HEADS, whole=True))
    if norm is not None and len(norm.shape) == 1 and 0 < norm.shape[0] < q_rows and q_rows % norm.shape[0] == 0:
        check_size(view, norm.shape[0], f"length of {base}{q_norm}.weight", "head_dim")
        return int(facts.add(name, norm.shape[0], f"length of {base}{q_norm}.weight"))
    if stated is None and heads is not None and default is not None and q_rows == heads * default:
        return int(facts.add(name, default, f"the family's default; {heads} heads give q_proj's {q_rows} rows"))
    if heads is not None and q_rows % heads == 0:
        found = q_rows // heads
        check_size(view, found, f"{base}q_proj.weight has {q_rows} rows for {heads} heads", "head_dim")
        evidence = "config.json" if stated is not None else f"q_proj's {q_rows} rows by {heads} heads"
        return int(facts.add(name, found, evidence))
    if heads is None and stated is not None and q_rows % stated == 0:
        return int(facts.add(name, stated, "config.json"))
    if heads is not None:
        raise TensorShapeMismatch(
            f"config.json says {heads} attention heads, but {base}q_proj.weight has {q_rows} rows.",
            param=base + "q_proj.weight",
        )
    for usual in (64, 128):
        if q_rows % usual == 0 and k_rows % usual == 0:
            facts.warn(f"head_dim is inferred ({usual}); set attention.head_dim if the output is nonsense.")
            return int(
                facts.add(name, usual, "a usual width that divides the rows; not in config.json", Confidence.LOW)
            )
    raise UnsupportedArchitecture(
        f"num_attention_heads is not in config.json and {base}q_proj.weight ({q_rows} rows) doesn't show it; add it.",
        param="num_attention_heads",
    )


def _agreed(view: CheckpointView, name: str, keys: Sequence[str], found: int, tensor_name: str) -> int:
    """The number that the shapes give; config.json may state no other, unless the width was set by hand."""
    stated = view.config.optional_integer(*keys, high=_MAX_HEADS)
    evidence, confidence = f"rows of {tensor_name} by head_dim", Confidence.HIGH
    if "attention.head_dim" not in view.facts.overrides:
        check_size(view, found, evidence, *keys)
    if stated == found:
        return int(view.facts.add(name, found, f"config.json and the rows of {tensor_name}"))
    view.facts.add(name, found, evidence, confidence)
    return found


def _fused_heads(view: CheckpointView, fused: str, base: str, output: str, default_head_dim: int | None) -> HeadSizes:
    """Heads of a projection that holds q, k and v: (heads + 2 · kv heads) · head_dim rows."""
    config, facts = view.config, view.facts
    rows = matrix_shape(view.tensors, fused)[0]
    q_width = matrix_shape(view.tensors, f"{base}{output}.weight")[1]
    kv_width = (rows - q_width) // 2
    heads = config.integer(*_HEADS_KEYS, high=_MAX_HEADS)
    head_dim = config.optional_integer("head_dim", high=_MAX_HEADS) or default_head_dim
    if head_dim is None or head_dim * heads != q_width:
        if q_width % heads:
            raise TensorShapeMismatch(
                f"config.json says {heads} attention heads, but {base}{output}.weight has {q_width} columns.",
                param=f"{base}{output}.weight",
            )
        head_dim = q_width // heads
        check_size(view, head_dim, f"{q_width} columns of {base}{output}.weight for {heads} heads", "head_dim")
    facts.add("attention.head_dim", head_dim, f"{q_width} columns of {output} by {heads} heads")
    if kv_width <= 0 or (rows - q_width) % 2 or kv_width % head_dim:
        raise TensorShapeMismatch(
            f"{fused} has {rows} rows; {heads} heads of {head_dim} and the same for keys and values don't fit.",
            param=fused,
        )
    facts.add("attention.num_heads", heads, "config.json")
    kv_heads = _agreed(view, "attention.num_kv_heads", _KV_HEADS_KEYS, kv_width // head_dim, "qkv_proj")
    return checked_heads(HeadSizes(heads, kv_heads, head_dim), base)


def checked_heads(sizes: HeadSizes, base: str) -> HeadSizes:
    """The sizes of the attention under ``base``, if its query heads can share its key/value heads.

    Raises:
        TensorShapeMismatch: Their numbers don't divide, or there is none.
    """
    if not sizes.num_kv_heads or not sizes.num_heads or sizes.num_heads % sizes.num_kv_heads:
        raise TensorShapeMismatch(
            f"{sizes.num_heads} query heads can't share {sizes.num_kv_heads} key/value heads ({base[:-1]}).",
            param=base + "k_proj.weight",
        )
    return sizes
