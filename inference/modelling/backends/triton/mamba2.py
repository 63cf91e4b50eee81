# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Mamba-2's recurrence on the device: one token of many sequences, and a chunk of one sequence.

A decode reads and writes every byte of the state once, with everything around the recurrence (step sizes, decay,
skip connection) in the same pass. The convolution before it is ``conv``.

State slot 0 is read as zero and never written.

Chunks begin anywhere and have any length. Neither may be what a kernel is compiled anew for: requests would wait.

Shape letters: T rows, H heads, P head width, S state size, G groups, L tokens of a chunk.

Reference: ``layers.scan.ssd_step`` and ``ssd_scan``.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.activations import softplus

SCAN_CHUNK = 64
"""Tokens that a scan works on at once; like ``layers.scan.SSD_CHUNK``."""

UNBOUNDED = 3.0e38
"""Stands for an infinite ``dt_max``; a step size is far below."""


@triton.jit(do_not_specialize_on_alignment=["dt_ptr"])
def _state_step(
    xbc_ptr, dt_ptr, dt_bias_ptr, rates_ptr, skip_ptr, state_ptr, slots_ptr, out_ptr, dt_min, dt_max, dt_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH_TILE: tl.constexpr, SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    """Some rows of one head's state of one sequence."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // (HEADS // GROUPS)
    inner: tl.constexpr = HEADS * WIDTH
    channels: tl.constexpr = inner + 2 * GROUPS * SIZE
    places = tl.program_id(2) * WIDTH_TILE + tl.arange(0, WIDTH_TILE)
    sizes = tl.arange(0, SIZE_PADDED)
    in_width, in_size = places < WIDTH, sizes < SIZE
    slot = tl.load(slots_ptr + row)
    cells = state_ptr + ((slot * HEADS + head) * WIDTH + places)[:, None] * SIZE + sizes[None, :]
    owned = in_width[:, None] & (sizes < tl.where(slot != 0, SIZE, 0))[None, :]
    state = tl.load(cells, mask=owned, other=0.0)
    delta = tl.load(dt_ptr + row * dt_row + head).to(tl.float32) + tl.load(dt_bias_ptr + head).to(tl.float32)
    delta = tl.minimum(tl.maximum(softplus(delta), dt_min), dt_max)
    decay = tl.exp(delta * tl.load(rates_ptr + head))
    x = tl.load(xbc_ptr + row * channels + head * WIDTH + places, mask=in_width, other=0.0)
    b = tl.load(xbc_ptr + row * channels + inner + group * SIZE + sizes, mask=in_size, other=0.0)
    c = tl.load(xbc_ptr + row * channels + inner + (GROUPS + group) * SIZE + sizes, mask=in_size, other=0.0)
    state = state * decay + (x * delta)[:, None] * b[None, :]
    tl.store(cells, state, mask=owned)
    y = tl.sum(state * c[None, :], 1) + x * tl.load(skip_ptr + head).to(tl.float32)
    tl.store(out_ptr + row * inner + head * WIDTH + places, y, mask=in_width)


def state_step(
    xbc: torch.Tensor,
    dt: torch.Tensor,
    dt_bias: torch.Tensor,
    rates: torch.Tensor,
    skip: torch.Tensor,
    ssm_state: torch.Tensor,
    slots: torch.Tensor,
    *,
    num_groups: int,
    dt_min: float,
    dt_max: float,
) -> torch.Tensor:
    """Advance each sequence's state by one token: y = s C + D x with s = e^{ΔA} s + Δ x ⊗ B.

    Args:
        xbc: (T, H·P + 2·G·S) float32, contiguous: the convolution's output.
        dt: (T, H) before bias and softplus.
        dt_bias, rates, skip: (H,): bias of dt, A (negative), D.
        ssm_state: (slots, H, P, S) float32, contiguous; the named slots are overwritten.
        slots: (T,) int64.
        num_groups: G.
        dt_min, dt_max: Range of the step size.

    Returns:
        (T, H·P) float32.
    """
    _, heads, width, size = ssm_state.shape
    count = xbc.shape[0]
    out = torch.empty(count, heads * width, dtype=torch.float32, device=xbc.device)
    size_padded = triton.next_power_of_2(size)
    # 2,048 values of state are 16 for each of 128 threads.
    tile = max(1, min(triton.next_power_of_2(width), 2048 // size_padded))
    _state_step[(count, heads, triton.cdiv(width, tile))](
        xbc, dt, dt_bias, rates, skip, ssm_state, slots, out, dt_min, min(dt_max, UNBOUNDED), dt.stride(0),
        HEADS=heads, WIDTH=width, SIZE=size, GROUPS=num_groups, WIDTH_TILE=tile, SIZE_PADDED=size_padded,
        # With fewer values than threads several warps would hold the same ones, and one might read what another wrote.
        num_warps=4 if tile * size_padded >= 1024 else 1,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["length"], do_not_specialize_on_alignment=["dt_ptr"])
def _scan(
    xbc_ptr, dt_ptr, dt_bias_ptr, rates_ptr, skip_ptr, state_ptr, out_ptr, length, dt_min, dt_max, dt_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, FRESH: tl.constexpr,
    WIDTH_TILE: tl.constexpr, SIZE_PADDED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some rows of one head's state through all tokens, chunk by chunk; the state stays on the chip."""
    head = tl.program_id(0)
    group = head // (HEADS // GROUPS)
    inner: tl.constexpr = HEADS * WIDTH
    channels: tl.constexpr = inner + 2 * GROUPS * SIZE
    places = tl.program_id(1) * WIDTH_TILE + tl.arange(0, WIDTH_TILE)
    sizes = tl.arange(0, SIZE_PADDED)
    in_width, in_size = places < WIDTH, sizes < SIZE
    cells = state_ptr + (head * WIDTH + places)[None, :] * SIZE + sizes[:, None]
    owned = in_width[None, :] & in_size[:, None]
    if FRESH:  # noqa: SIM108
        state = tl.zeros((SIZE_PADDED, WIDTH_TILE), tl.float32)
    else:
        state = tl.load(cells, mask=owned, other=0.0)  # (S, P): transposed, as the products want it
    rate = tl.load(rates_ptr + head)
    bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    skip = tl.load(skip_ptr + head).to(tl.float32)
    within = tl.arange(0, CHUNK)
    earlier = within[:, None] >= within[None, :]
    for start in range(0, length, CHUNK):
        tokens = start + within
        real = tokens < length
        rows = tokens.to(tl.int64) * channels
        delta = tl.load(dt_ptr + tokens.to(tl.int64) * dt_row + head, mask=real, other=0.0).to(tl.float32)
        # Rows beyond the end neither decay nor enter.
        delta = tl.where(real, tl.minimum(tl.maximum(softplus(delta + bias), dt_min), dt_max), 0.0)
        # float64: a strong decay early in a chunk would cost the later, small differences their digits.
        sums = tl.cumsum((delta * rate).to(tl.float64), 0)
        last = tl.sum((delta * rate).to(tl.float64), 0)
        x = tl.load(
            xbc_ptr + rows[:, None] + head * WIDTH + places[None, :], mask=real[:, None] & in_width[None, :], other=0.0
        )
        b = tl.load(
            xbc_ptr + rows[:, None] + inner + group * SIZE + sizes[None, :],
            mask=real[:, None] & in_size[None, :], other=0.0,
        )  # fmt: skip
        c = tl.load(
            xbc_ptr + rows[:, None] + inner + (GROUPS + group) * SIZE + sizes[None, :],
            mask=real[:, None] & in_size[None, :], other=0.0,
        )  # fmt: skip
        entering = x * delta[:, None]
        # Tokens of this chunk among themselves.
        since = (sums[:, None] - sums[None, :]).to(tl.float32)
        mixing = tl.where(earlier, tl.exp(tl.where(earlier, since, 0.0)), 0.0)
        mixing *= tl.dot(c, tl.trans(b), input_precision=PRECISION)
        y = tl.dot(mixing, entering, input_precision=PRECISION)
        # What the state before the chunk still gives.
        y += tl.dot(c, state, input_precision=PRECISION) * tl.exp(sums.to(tl.float32))[:, None]
        tl.store(
            out_ptr + tokens.to(tl.int64)[:, None] * inner + head * WIDTH + places[None, :], y + x * skip,
            mask=real[:, None] & in_width[None, :],
        )  # fmt: skip
        # The state after the chunk.
        until_end = tl.exp((last - sums).to(tl.float32))
        state = state * tl.exp(last.to(tl.float32)) + tl.dot(
            tl.trans(b), entering * until_end[:, None], input_precision=PRECISION
        )
    tl.store(cells, state, mask=owned)


def chunk_scan(
    xbc: torch.Tensor,
    dt: torch.Tensor,
    dt_bias: torch.Tensor,
    rates: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    *,
    num_groups: int,
    dt_min: float,
    dt_max: float,
    fresh: bool,
    exact: bool,
) -> None:
    """The recurrence over a chunk of one sequence.

    Args:
        xbc: (L, H·P + 2·G·S) float32, contiguous rows.
        dt: (L, H) before bias and softplus.
        dt_bias, rates, skip: (H,), as in ``state_step``.
        state: (H, P, S) float32, contiguous, the sequence's entry, overwritten.
        out: (L, H·P) float32, contiguous, written.
        num_groups: G.
        dt_min, dt_max: Range of the step size.
        fresh: The sequence starts here from zero, whatever ``state`` holds.
        exact: float32 products; otherwise with 10 bits of mantissa (tf32), more than bfloat16 rows carry.
    """
    heads, width, size = state.shape
    assert math.prod(out.shape) == xbc.shape[0] * heads * width
    tile = max(16, min(64, triton.next_power_of_2(width)))
    _scan[(heads, triton.cdiv(width, tile))](
        xbc, dt, dt_bias, rates, skip, state, out, xbc.shape[0], dt_min, min(dt_max, UNBOUNDED), dt.stride(0),
        HEADS=heads, WIDTH=width, SIZE=size, GROUPS=num_groups, FRESH=fresh, WIDTH_TILE=tile,
        SIZE_PADDED=max(16, triton.next_power_of_2(size)), CHUNK=SCAN_CHUNK,
        PRECISION="ieee" if exact else "tf32", num_warps=8 if size > 64 else 4, num_stages=1,
    )  # fmt: skip
