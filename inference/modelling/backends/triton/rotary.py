# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""From the joint projections to rotated queries and a written cache, in one pass.

Rows of slot 0 (padding of a captured batch) are computed and written nowhere: scratch stays zero.

Shape letters: T rows, H query heads, V key/value heads, P head width, r kv_lora_rank, R rotated width of MLA.

Reference: ``layers.rotary.rotate_first``, ``layers.norm.Norm`` and the ``_project`` of both attention layers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.specs.parts import NormSpec


@triton.jit
def _partner(columns, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The column that each one is rotated with."""
    if INTERLEAVED:
        return columns ^ 1
    else:
        return (columns + ROTARY // 2) % ROTARY


@triton.jit
def _rope_write(
    joint_ptr, cos_ptr, sin_ptr, q_weight_ptr, k_weight_ptr, slots_ptr, out_ptr, key_ptr, value_ptr,
    eps, offset, joint_row, key_slot, value_slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, HAS_NORM: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One head of one row: query heads, then key heads, then value heads."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    slot = tl.load(slots_ptr + row)
    written = columns < tl.where(slot != 0, WIDTH, 0)
    source = joint_ptr + row * joint_row + head * WIDTH
    stored = tl.load(source + columns, mask=inside, other=0.0)
    if head >= HEADS + KV_HEADS:
        target = value_ptr + slot * value_slot + (head - HEADS - KV_HEADS) * WIDTH
        tl.store(target + columns, stored, mask=written)
    else:
        values = stored.to(tl.float32)
        weight_ptr = q_weight_ptr
        if head >= HEADS:
            weight_ptr = k_weight_ptr
        if HAS_NORM:
            scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / WIDTH + eps)
            values *= scale
            if HAS_WEIGHT:
                values *= tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
            values = values.to(stored.dtype).to(tl.float32)
        if ROTARY > 0:
            turned = columns < ROTARY
            other_columns = _partner(columns, ROTARY, INTERLEAVED)
            others = tl.load(source + other_columns, mask=turned, other=0.0).to(tl.float32)
            if HAS_NORM:
                others *= scale
                if HAS_WEIGHT:
                    others *= tl.load(weight_ptr + other_columns, mask=turned, other=0.0).to(tl.float32) + offset
                others = others.to(stored.dtype).to(tl.float32)
            cos = tl.load(cos_ptr + row * ROTARY + columns, mask=turned, other=1.0)
            sin = tl.load(sin_ptr + row * ROTARY + columns, mask=turned, other=0.0)
            values = values * cos + others * sin
        result = values.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + (row * (HEADS + KV_HEADS) + head) * WIDTH + columns, result, mask=inside)
        if head >= HEADS:
            target = key_ptr + slot * key_slot + (head - HEADS) * WIDTH
            tl.store(target + columns, result, mask=written)


def rope_and_write(
    joint: torch.Tensor,
    cos_sin: tuple[torch.Tensor, torch.Tensor] | None,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    num_heads: int,
    interleaved: bool,
    head_norm: NormSpec | None = None,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Norm (per head, RMS) and rotate queries and keys, and write keys and values to the cache.

    Args:
        joint: (T, H + 2V, P): queries, keys, values.
        cos_sin: From ``RotaryEmbedding``, (T, 1, D) each; None: no rotation.
        slot_mapping: (T,) int64.
        key_cache, value_cache: (slots, V, P), written in place.
        num_heads: H.
        interleaved: As in the spec of the rotation.
        head_norm: None: no norm here.
        q_weight, k_weight: (P,) of the norms; None: weightless.

    Returns:
        Queries (T, H, P), keys (T, V, P), values (T, V, P, a view of ``joint``).
    """
    rows, all_heads, width = joint.shape
    kv_heads = key_cache.shape[1]
    out = torch.empty(rows, num_heads + kv_heads, width, dtype=joint.dtype, device=joint.device)
    cos, sin = (joint, joint) if cos_sin is None else cos_sin
    padded = triton.next_power_of_2(width)
    _rope_write[(rows, all_heads)](
        joint, cos, sin, joint if q_weight is None else q_weight, joint if k_weight is None else k_weight,
        slot_mapping, out, key_cache, value_cache,
        0.0 if head_norm is None else head_norm.eps, 0.0 if head_norm is None else head_norm.offset,
        joint.stride(0), key_cache.stride(0), value_cache.stride(0),
        HEADS=num_heads, KV_HEADS=kv_heads, WIDTH=width, PADDED=padded,
        ROTARY=0 if cos_sin is None else cos.shape[-1], INTERLEAVED=interleaved, HAS_NORM=head_norm is not None,
        HAS_WEIGHT=q_weight is not None, num_warps=1,
    )  # fmt: skip
    return out[:, :num_heads], out[:, num_heads:], joint[:, num_heads + kv_heads :]


@triton.jit
def _latent_write(
    q_rope_ptr, compressed_ptr, cos_ptr, sin_ptr, weight_ptr, slots_ptr, q_out_ptr, latent_ptr, cache_ptr,
    eps, offset, q_row, q_head, compressed_row, cache_slot,
    HEADS: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One query head of one row, or (the last program) its latent and shared key."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, ROPE_PADDED)
    inside = columns < ROPE
    if head < HEADS:  # noqa: SIM108
        source = q_rope_ptr + row * q_row + head * q_head
    else:
        source = compressed_ptr + row * compressed_row + RANK
    values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
    if ROTATED:
        others = _partner(columns, ROPE, INTERLEAVED)
        partners = tl.load(source + others, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + row * ROPE + columns, mask=inside, other=0.0)
        sin = tl.load(sin_ptr + row * ROPE + columns, mask=inside, other=0.0)
        values = values * cos + partners * sin
    turned = values.to(q_out_ptr.dtype.element_ty)
    if head < HEADS:
        tl.store(q_out_ptr + (row * HEADS + head) * ROPE + columns, turned, mask=inside)
    else:
        slot = tl.load(slots_ptr + row)
        ranks = tl.arange(0, RANK_PADDED)
        within = ranks < RANK
        stored = tl.load(compressed_ptr + row * compressed_row + ranks, mask=within, other=0.0)
        latent = stored.to(tl.float32)
        if HAS_NORM:
            latent = latent * (1.0 / tl.sqrt_rn(tl.sum(latent * latent, 0) / RANK + eps))
            if HAS_WEIGHT:
                latent *= tl.load(weight_ptr + ranks, mask=within, other=0.0).to(tl.float32) + offset
        latent = latent.to(stored.dtype)
        tl.store(latent_ptr + row * (RANK + ROPE) + ranks, latent, mask=within)
        tl.store(latent_ptr + row * (RANK + ROPE) + RANK + columns, turned, mask=inside)
        tl.store(cache_ptr + slot * cache_slot + ranks, latent, mask=ranks < tl.where(slot != 0, RANK, 0))
        tl.store(cache_ptr + slot * cache_slot + RANK + columns, turned, mask=columns < tl.where(slot != 0, ROPE, 0))


def latent_rope_and_write(
    q_rope: torch.Tensor,
    compressed: torch.Tensor,
    cos_sin: tuple[torch.Tensor, torch.Tensor] | None,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
    *,
    interleaved: bool,
    norm: NormSpec | None,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """MLA: rotate the queries' rotary part and the shared key, norm the latent, write latent and key to the cache.

    Args:
        q_rope: (T, H, R), unit stride in the last axis.
        compressed: (T, r + R), ``kv_a_proj``'s output.
        cos_sin: (T, 1, R) each; None: no rotation.
        slot_mapping: (T,) int64.
        latent_cache: (slots, r + R), written in place.
        interleaved: As in the spec of the rotation.
        norm: RMS norm of the latent; None: none.
        weight: (r,) of the norm or None.

    Returns:
        Rotated (T, H, R), and the rows as written (T, r + R).
    """
    rows, heads, rope = q_rope.shape
    rank = latent_cache.shape[1] - rope
    turned = torch.empty(rows, heads, rope, dtype=q_rope.dtype, device=q_rope.device)
    latent = torch.empty(rows, rank + rope, dtype=compressed.dtype, device=compressed.device)
    _latent_write[(rows, heads + 1)](
        q_rope, compressed, *(cos_sin or (q_rope, q_rope)), compressed if weight is None else weight, slot_mapping,
        turned, latent, latent_cache, 0.0 if norm is None else norm.eps, 0.0 if norm is None else norm.offset,
        q_rope.stride(0), q_rope.stride(1), compressed.stride(0), latent_cache.stride(0),
        HEADS=heads, RANK=rank, RANK_PADDED=triton.next_power_of_2(rank), ROPE=rope,
        ROPE_PADDED=triton.next_power_of_2(rope), ROTATED=cos_sin is not None, INTERLEAVED=interleaved,
        HAS_NORM=norm is not None, HAS_WEIGHT=weight is not None, num_warps=2,
    )  # fmt: skip
    return turned, latent
