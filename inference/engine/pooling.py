"""Pool the hidden rows of a sequence into one vector, chunk by chunk."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from inference.errors import GenerationFailed

Pooling = Literal["mean", "last", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Float32Array = npt.NDArray[np.float32]


class Pooler:
    """Pool one sequence; repeated rows of a preempted request count once.

    Args:
        kind: ``mean`` of all rows, the ``last`` row, or the first row (``cls``).
        num_tokens: Tokens of the sequence.
    """

    def __init__(self, kind: Pooling, num_tokens: int) -> None:
        self._kind = kind
        self._num_tokens = num_tokens
        self._num_seen = 0
        self._pooled: torch.Tensor | None = None

    @property
    def can_skip_rows(self) -> bool:
        """Whether the prefix cache can replace rows before the last."""
        return self._kind == "last"

    def add(self, rows: torch.Tensor, position: int) -> None:
        """Add the (n, h) hidden rows of the positions from ``position``."""
        stop = position + rows.shape[0]
        new = rows[max(0, self._num_seen - position) :]
        if not new.shape[0]:
            return
        if self._kind == "mean":
            part = new.sum(0, dtype=torch.float32)
            self._pooled = part if self._pooled is None else self._pooled + part
        elif self._kind == "cls" and not self._num_seen:
            self._pooled = new[0].float().clone()
        elif self._kind == "last" and stop == self._num_tokens:
            self._pooled = new[-1].float().clone()  # a copy, because the next step overwrites the rows
        self._num_seen = stop

    def vector(self) -> Float32Array:
        """Return the pooled vector: (h,) float32, on the host.

        Raises:
            GenerationFailed: The sequence isn't complete, or its rows hold NaN or infinity.
        """
        if self._pooled is None or self._num_seen < self._num_tokens:
            raise GenerationFailed("the input was not computed to its end.")
        pooled = self._pooled / self._num_tokens if self._kind == "mean" else self._pooled
        found: Float32Array = pooled.cpu().numpy()
        if not np.isfinite(found).all():
            raise GenerationFailed("numerical_error: the model computed no usable vector for this input.")
        return found
