"""Rows and gates for tests of the delta rule's kernels, and what its layers make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inference.modelling.layers.gated_delta import delta_scan, unit
from inference.modelling.layers.kimi_delta import channel_delta_scan

if TYPE_CHECKING:
    from inference.modelling.backends.triton.delta import DeltaRows

DELTA_SHAPES = [(1, 1, 16, 16), (2, 4, 12, 20), (1, 3, 100, 8)]
"""Key heads, value heads, their widths; the last two aren't powers of 2."""


class DeltaCase:
    """Random rows as the convolution leaves them, and gates."""

    def __init__(self, count: int, shape: tuple[int, int, int, int], by_channel: bool) -> None:
        self.shape = shape
        key_heads, heads, key_width, width = shape
        self.widths = [key_heads * key_width, key_heads * key_width, heads * width]
        self.rows = torch.randn(count, sum(self.widths))
        self.beta = torch.rand(count, heads) * 2
        decays = (count, heads, key_width) if by_channel else (count, heads)
        self.log_decay = -torch.rand(decays) * torch.tensor([0.01, 3.0])[torch.randint(0, 2, decays)]

    def wanted(self, rows: slice, state: torch.Tensor) -> torch.Tensor:
        """By the layers' own functions; ``state`` (H, P, V) advances."""
        key_heads, heads, key_width, width = self.shape
        query, key, value = self.rows[rows].split(self.widths, 1)
        query, key = (unit(part.reshape(-1, key_heads, key_width)) for part in (query, key))
        query, key = (part.repeat_interleave(heads // key_heads, 1) for part in (query, key))
        scan = channel_delta_scan if self.log_decay.dim() == 3 else delta_scan
        value = value.reshape(-1, heads, width)
        return scan(query * key_width**-0.5, key, value, self.beta[rows], self.log_decay[rows], state)

    def moved(self, device: torch.device, pool: torch.Tensor, *, exact: bool = True) -> DeltaRows:
        from inference.modelling.backends.triton.delta import DeltaRows

        parts = self.rows.to(device).split(self.widths, 1)
        key_heads, heads, _, width = self.shape
        out = torch.full((len(self.rows), heads, width), torch.nan, device=device)
        return DeltaRows(*parts, self.beta.to(device), self.log_decay.to(device), pool, key_heads, out, exact)
