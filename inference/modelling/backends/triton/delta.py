# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""The gated delta rule on the device: a row of many sequences, or the rows of one, one after the other.

Long chunks whose decays are per head are computed in pieces instead (``delta_pieces``).

A program has some value columns of one head's state and keeps them on the chip over all of its rows. Heads and columns
are independent of each other, so that a chunk is computed without passing anything between programs. A program of one
warp needs no barrier within a row. Queries and keys come as the convolution leaves them and are normalised here.

State slot 0 is read as zero and never written.

Chunks begin anywhere and have any length. Neither may be what a kernel is compiled anew for: requests would wait. So
the kernel takes whole tensors, whose addresses have the same alignment in each step, and a chunk's place as numbers.

Shape letters: T rows, B decoding sequences, G key heads, H value heads, P width of a key head, V width of a value head.

Reference: ``layers.gated_delta.delta_step`` and ``delta_scan``, ``layers.kimi_delta.channel_delta_scan``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.delta_pieces import pass_pieces
from inference.modelling.forward_batch import PrefillChunk
from inference.modelling.layers.gated_delta import NORM_EPS

MAX_STATE_VALUES = 2048
"""State values of a program: 64 for each of a warp's 32 threads."""
LEAST_ROWS_IN_PIECES = 32
"""Of a chunk; fewer rows are computed one after the other, at about a microsecond each on an H200."""


@triton.jit(do_not_specialize=["start", "length", "slot"])
def _delta(
    query_ptr, key_ptr, value_ptr, beta_ptr, decay_ptr, state_ptr, slots_ptr, out_ptr, start, length, slot, scale, eps,
    qkv_row,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SLOTS: tl.constexpr, FRESH: tl.constexpr, BY_CHANNEL: tl.constexpr,
    KEY_PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``length`` rows of one head of one sequence, for some columns of its values."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, columns = tl.arange(0, KEY_PADDED), tl.program_id(2) * TILE + tl.arange(0, TILE)
    in_keys, inside = keys < KEY_WIDTH, columns < WIDTH
    if HAS_SLOTS:  # noqa: SIM108
        slot = tl.load(slots_ptr + sequence)
    else:
        slot = slot.to(tl.int64)
    owned = in_keys[:, None] & (columns < tl.where(slot != 0, WIDTH, 0))[None, :]
    cells = state_ptr + ((slot * HEADS + head) * KEY_WIDTH + keys[:, None]) * WIDTH + columns[None, :]
    if FRESH:  # noqa: SIM108
        state = tl.zeros((KEY_PADDED, TILE), tl.float32)
    else:
        state = tl.load(cells, mask=owned, other=0.0)
    of_keys = (head // (HEADS // KEY_HEADS)) * KEY_WIDTH + keys
    for number in range(length):
        row = start + sequence * length + number
        query = tl.load(query_ptr + row * qkv_row + of_keys, mask=in_keys, other=0.0)
        key = tl.load(key_ptr + row * qkv_row + of_keys, mask=in_keys, other=0.0)
        value = tl.load(value_ptr + row * qkv_row + head * WIDTH + columns, mask=inside, other=0.0)
        query = query * (scale / tl.sqrt_rn(tl.sum(query * query, 0) + eps))
        key = key * (1.0 / tl.sqrt_rn(tl.sum(key * key, 0) + eps))
        beta = tl.load(beta_ptr + row * HEADS + head)
        if BY_CHANNEL:
            decay = tl.load(decay_ptr + (row * HEADS + head) * KEY_WIDTH + keys, mask=in_keys, other=0.0)
            state = state * tl.exp(decay)[:, None]
        else:
            state = state * tl.exp(tl.load(decay_ptr + row * HEADS + head))
        written = (value - tl.sum(state * key[:, None], 0)) * beta
        state = state + key[:, None] * written[None, :]
        tl.store(out_ptr + (row * HEADS + head) * WIDTH + columns, tl.sum(state * query[:, None], 0), mask=inside)
    tl.store(cells, state, mask=owned)


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """The rows of a step, and where their results go.

    Attributes:
        query, key: (T, G · P) float32, not normalised; parts of the same rows as ``value``, unit stride.
        value: (T, H · V) float32.
        beta: (T, H) float32, contiguous.
        log_decay: (T, H), or (T, H, P): one for each key channel; float32, contiguous.
        pool: (slots, H, P, V) float32, contiguous: the layer's states.
        num_key_heads: G, a divisor of H.
        out: (T, H, V) float32, contiguous, written.
        exact: The model computes in float32.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    beta: torch.Tensor
    log_decay: torch.Tensor
    pool: torch.Tensor
    num_key_heads: int
    out: torch.Tensor
    exact: bool

    def decode(self, slots: torch.Tensor) -> None:
        """The first B rows; row i belongs to the sequence in slot i of ``slots`` (B,) int64."""
        self._launch(slots.shape[0], slots, start=0, length=1, slot=0, fresh=False)

    def prefill(self, chunk: PrefillChunk) -> None:
        """The rows of a chunk; a sequence that starts with it starts from zero, whatever its entry holds."""
        length, fresh = chunk.stop - chunk.start, chunk.context_len == 0
        if self.log_decay.dim() == 2 and length >= LEAST_ROWS_IN_PIECES:
            pass_pieces(
                self.query, self.key, self.value, self.beta, self.log_decay, self.pool, self.out,
                num_key_heads=self.num_key_heads, start=chunk.start, length=length, slot=chunk.state_slot,
                fresh=fresh, exact=self.exact,
            )  # fmt: skip
            return
        self._launch(1, None, start=chunk.start, length=length, slot=chunk.state_slot, fresh=fresh)

    def _launch(
        self, sequences: int, slots: torch.Tensor | None, *, start: int, length: int, slot: int, fresh: bool
    ) -> None:
        query, pool = self.query, self.pool
        assert query.stride() == self.key.stride() == self.value.stride() and query.stride(1) == 1
        heads, key_width, width = pool.shape[1:]
        key_padded = triton.next_power_of_2(key_width)
        tile = max(1, min(triton.next_power_of_2(width), MAX_STATE_VALUES // key_padded))
        _delta[(sequences, heads, triton.cdiv(width, tile))](
            query, self.key, self.value, self.beta, self.log_decay, pool, pool if slots is None else slots, self.out,
            start, length, slot, key_width**-0.5, NORM_EPS, query.stride(0),
            KEY_HEADS=self.num_key_heads, HEADS=heads, KEY_WIDTH=key_width, WIDTH=width, HAS_SLOTS=slots is not None,
            FRESH=fresh, BY_CHANNEL=self.log_decay.dim() == 3, KEY_PADDED=key_padded, TILE=tile, num_warps=1,
        )  # fmt: skip
