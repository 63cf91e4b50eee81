"""Index single entries of logits by row and token id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import upload


def entries(
    chosen: Sequence[tuple[int, npt.NDArray[np.int64]]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and column numbers, (e,) each, of entries that are given as pairs of row and token ids."""
    if not chosen:
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return nothing, nothing
    rows = np.repeat(
        np.array([at for at, _ in chosen], dtype=np.int64), np.array([len(ids) for _, ids in chosen], dtype=np.int64)
    )
    columns = np.concatenate([ids for _, ids in chosen])
    return upload(rows, device), upload(columns, device)
