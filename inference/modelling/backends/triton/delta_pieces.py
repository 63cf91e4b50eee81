# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""The gated delta rule over a long chunk of one sequence: in pieces of rows, whose products are those of matrices.

Row i of a piece writes d_i = β_i (v_i - k_i S_i), where S_i is the state before it: the state S before the piece, and
what the rows j < i wrote, faded by e^(γ_i - γ_j); γ is the running sum of the log decays. So d solves

    (I + A) d = β (v - e^γ k S),    A_ij = β_i e^(γ_i - γ_j) k_i · k_j below the diagonal.

Neither A nor its inverse depends on the state. A first kernel inverts I + A for all pieces at once, a second one goes
over the pieces with some value columns of one head's state, which stays on the chip. Only differences of sums that are
negative are exponentiated, however strong the decays are.

Chunks begin anywhere and have any length, and sequences start with them or before: nothing of it is what a kernel is
compiled anew for.

Shape letters: T rows, n rows of a chunk, G key heads, H value heads, P width of a key head, V width of a value head.

Source: Yang et al. 2024, https://arxiv.org/abs/2412.06464, section 3.3.
Reference: ``layers.gated_delta.delta_scan``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.layers.gated_delta import CHUNK as PIECE
from inference.modelling.layers.gated_delta import LEAST_LOG_DECAY, NORM_EPS

_LEAST_LOG_DECAY = tl.constexpr(LEAST_LOG_DECAY)


@triton.jit
def _log_decays(decay_ptr, rows, real, head, HEADS: tl.constexpr):
    """The log decays of a piece, in float64: sums of strong ones would cost later, small differences their digits."""
    decay = tl.load(decay_ptr + rows * HEADS + head, mask=real, other=0.0)
    decay = tl.where(decay < _LEAST_LOG_DECAY, _LEAST_LOG_DECAY, decay)  # unlike the maximum this passes NaN on
    return decay.to(tl.float64)


@triton.jit(do_not_specialize=["start", "length"])
def _invert_pieces(
    query_ptr, key_ptr, beta_ptr, decay_ptr, inverse_ptr, mixing_ptr, scales_ptr, start, length, scale, eps, qkv_row,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr, KEY_TILE: tl.constexpr,
    PIECE: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one head of one piece has that doesn't depend on the state.

    That is (I + A)⁻¹ β; how rows read what others wrote, e^(γ_i - γ_j) q_i · k_j for j <= i; and what brings its keys
    to length 1, and its queries to ``scale``.
    """
    head = tl.program_id(1)
    within = tl.arange(0, PIECE)
    numbers = tl.program_id(0) * PIECE + within
    real = numbers < length
    rows = (start + numbers).to(tl.int64)
    of_head = rows[:, None] * qkv_row + (head // (HEADS // KEY_HEADS)) * KEY_WIDTH
    of_keys, of_both = tl.zeros((PIECE, PIECE), tl.float32), tl.zeros((PIECE, PIECE), tl.float32)
    key_squares, query_squares = tl.zeros((PIECE,), tl.float32), tl.zeros((PIECE,), tl.float32)
    for first in range(0, KEY_WIDTH, KEY_TILE):
        keys = first + tl.arange(0, KEY_TILE)[None, :]
        known = real[:, None] & (keys < KEY_WIDTH)
        key = tl.load(key_ptr + of_head + keys, mask=known, other=0.0)
        query = tl.load(query_ptr + of_head + keys, mask=known, other=0.0)
        key_squares += tl.sum(key * key, 1)
        query_squares += tl.sum(query * query, 1)
        of_keys = tl.dot(key, tl.trans(key), of_keys, input_precision=PRECISION)
        of_both = tl.dot(query, tl.trans(key), of_both, input_precision=PRECISION)
    key_scale, query_scale = 1.0 / tl.sqrt_rn(key_squares + eps), scale / tl.sqrt_rn(query_squares + eps)
    at = numbers.to(tl.int64) * HEADS + head
    tl.store(scales_ptr + at * 2, key_scale, mask=real)
    tl.store(scales_ptr + at * 2 + 1, query_scale, mask=real)
    beta = tl.load(beta_ptr + rows * HEADS + head, mask=real, other=0.0)
    sums = tl.cumsum(_log_decays(decay_ptr, rows, real, head, HEADS), 0)
    row, column = within[:, None], within[None, :]
    since = tl.where(row >= column, (sums[:, None] - sums[None, :]).to(tl.float32), 0.0)
    fade = tl.where(row >= column, tl.exp(since), 0.0) * key_scale[None, :]
    cells = at[:, None] * PIECE + column
    tl.store(mixing_ptr + cells, of_both * fade * query_scale[:, None], mask=real[:, None])
    below = tl.where(row > column, of_keys * fade * (key_scale * beta)[:, None], 0.0)
    # Of two neighbouring blocks X and Y on the diagonal, and B below X, the inverse has -Y⁻¹ B X⁻¹ in B's place. All
    # blocks of 1 row are joined at once, then all of 2, 4 and so on.
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where((row >> 1) == (column >> 1), below, 0.0)
    for level in range(1, LEVELS):
        joined = ((row >> level) != (column >> level)) & ((row >> (level + 1)) == (column >> (level + 1)))
        right = tl.dot(tl.where(joined, below, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, right, input_precision=PRECISION)
    tl.store(inverse_ptr + cells, inverse * beta[None, :], mask=real[:, None])


@triton.jit(do_not_specialize=["start", "length", "slot", "fresh"])
def _pass_pieces(
    query_ptr, key_ptr, value_ptr, decay_ptr, inverse_ptr, mixing_ptr, scales_ptr, state_ptr, out_ptr,
    start, length, slot, fresh, qkv_row,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr, WIDTH: tl.constexpr,
    KEY_PADDED: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take the rows of a chunk piece by piece, for some value columns of one head."""
    head = tl.program_id(0)
    keys, columns = tl.arange(0, KEY_PADDED), tl.program_id(1) * TILE + tl.arange(0, TILE)
    in_keys, inside = keys < KEY_WIDTH, columns < WIDTH
    cells = state_ptr + ((slot.to(tl.int64) * HEADS + head) * KEY_WIDTH + keys[:, None]) * WIDTH + columns[None, :]
    owned = in_keys[:, None] & (columns < tl.where(slot != 0, WIDTH, 0))[None, :]
    continued = (columns < tl.where(fresh == 0, WIDTH, 0))[None, :]
    state = tl.load(cells, mask=owned & continued, other=0.0)
    within = tl.arange(0, PIECE)
    for first in range(0, length, PIECE):
        numbers = first + within
        real = numbers < length
        rows = (start + numbers).to(tl.int64)
        known = real[:, None] & in_keys[None, :]
        of_head = rows[:, None] * qkv_row + (head // (HEADS // KEY_HEADS)) * KEY_WIDTH + keys[None, :]
        decay = _log_decays(decay_ptr, rows, real, head, HEADS)
        sums, last = tl.cumsum(decay, 0), tl.sum(decay, 0)
        faded = tl.exp(sums.to(tl.float32))
        at = numbers.to(tl.int64) * HEADS + head
        matrix = at[:, None] * PIECE + within[None, :]
        here = real[:, None] & inside[None, :]
        key = tl.load(key_ptr + of_head, mask=known, other=0.0)
        key_scale = tl.load(scales_ptr + at * 2, mask=real, other=0.0)
        held = tl.dot(key, state, input_precision=PRECISION) * (faded * key_scale)[:, None]
        value = tl.load(value_ptr + rows[:, None] * qkv_row + head * WIDTH + columns[None, :], mask=here, other=0.0)
        inverse = tl.load(inverse_ptr + matrix, mask=real[:, None], other=0.0)
        written = tl.dot(inverse, value - held, input_precision=PRECISION)
        query = tl.load(query_ptr + of_head, mask=known, other=0.0)
        query_scale = tl.load(scales_ptr + at * 2 + 1, mask=real, other=0.0)
        out = tl.dot(query, state, input_precision=PRECISION) * (faded * query_scale)[:, None]
        mixing = tl.load(mixing_ptr + matrix, mask=real[:, None], other=0.0)
        out = tl.dot(mixing, written, out, input_precision=PRECISION)
        tl.store(out_ptr + (rows[:, None] * HEADS + head) * WIDTH + columns[None, :], out, mask=here)
        left = tl.exp((last - sums).to(tl.float32)) * key_scale
        state = state * tl.exp(last.to(tl.float32))
        state = tl.dot(tl.trans(key), written * left[:, None], state, input_precision=PRECISION)
    tl.store(cells, state, mask=owned)


def pass_pieces(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    log_decay: torch.Tensor,
    pool: torch.Tensor,
    out: torch.Tensor,
    *,
    num_key_heads: int,
    start: int,
    length: int,
    slot: int,
    fresh: bool,
    exact: bool,
) -> None:
    """Compute the outputs of a sequence's rows from ``start`` on, and advance its state.

    Args:
        query, key, value, beta, log_decay, pool, num_key_heads, out: As in ``DeltaRows``; decays per head.
        start, length: Which rows.
        slot: The sequence's entry of ``pool``.
        fresh: The sequence starts here from zero, whatever its entry holds.
        exact: Products with the state as of float32; otherwise with 10 bits of mantissa (tf32), more than the
            projections to bfloat16 and float16 leave in q, k and v. The state itself stays float32.
    """
    heads, key_width, width = pool.shape[1:]
    key_padded = max(16, triton.next_power_of_2(key_width))
    tile = max(16, min(32, triton.next_power_of_2(width)))
    inverse = torch.empty(length, heads, PIECE, dtype=torch.float32, device=pool.device)
    mixing, scales = torch.empty_like(inverse), torch.empty_like(inverse[..., :2])
    sizes = {"KEY_HEADS": num_key_heads, "HEADS": heads, "KEY_WIDTH": key_width, "PIECE": PIECE}
    _invert_pieces[(triton.cdiv(length, PIECE), heads)](
        query, key, beta, log_decay, inverse, mixing, scales, start, length, key_width**-0.5, NORM_EPS, query.stride(0),
        **sizes, KEY_TILE=min(32, key_padded), LEVELS=PIECE.bit_length() - 1, PRECISION="tf32x3", num_warps=8,
    )  # fmt: skip
    _pass_pieces[(heads, triton.cdiv(width, tile))](
        query, key, value, log_decay, inverse, mixing, scales, pool, out, start, length, slot, int(fresh),
        query.stride(0), **sizes, WIDTH=width, KEY_PADDED=key_padded, TILE=tile,
        PRECISION="tf32x3" if exact else "tf32", num_warps=8, num_stages=1,
    )  # fmt: skip
