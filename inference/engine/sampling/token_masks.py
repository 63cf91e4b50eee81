"""Compute the token masks of grammars during the forward pass, and apply the masks before the draw.

On a CPU the forward pass uses all cores. There the grammar first checks the argmax of a greedy request, because the
check of one token is faster than a mask. The mask is computed only if the grammar refuses that token. The chosen token
is the same as with the mask.

Shape letters: n rows, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.device import upload_ids
from inference.engine.sampling.row_ops import entries
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.token_constraint import TokenConstraint, TokenMask

logger = logging.getLogger(__name__)

NARROW = 1024
"""Maximum number of allowed tokens for a draw among the allowed tokens only."""


class TokenMasks:
    """Logits processor with a thread of its own, which starts with the first mask."""

    def __init__(self, device: torch.device) -> None:
        self._can_check_argmax = device.type == "cpu"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._computing: list[Future[None]] = []
        self._begun: set[TokenConstraint] = set()

    def begin(self, rows: Sequence[SamplingState]) -> None:
        """Start to compute the masks of rows with a constraint, in the thread."""
        constraints = [row.constraint for row in rows if row.constraint is not None and self.precedes(row)]
        fresh = [constraint for constraint in constraints if constraint not in self._begun]
        if fresh:
            self._begun.update(fresh)
            self._computing.append(self._thread.submit(_compute, fresh))

    def finish(self) -> None:
        """Wait for the masks that were started; until then only the thread may use the constraints."""
        computing, self._computing = self._computing, []
        self._begun.clear()
        wait(computing)

    def apply(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
        """Mask the rows with a constraint, except rows of ``correct``, rows with few allowed tokens, and errors."""
        if not any(self.precedes(row) for row in rows):
            return
        self.finish()
        masks: list[tuple[int, TokenMask]] = []
        for at, row in enumerate(rows):
            constraint = row.constraint if self.precedes(row) else None
            if constraint is not None and constraint.error is None and narrow_ids(row) is None:
                masks.append((at, constraint.mask()))
        if logits.device.type == "cpu":
            apply_by_row(logits.numpy(), masks)
        else:
            apply_at_once(logits, masks)

    def correct(
        self, logits: torch.Tensor, rows: Sequence[SamplingState], token_ids: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Replace each argmax that its grammar refuses by the argmax of the allowed tokens.

        Args:
            logits: (n, V) float32 on the CPU, may be overwritten.
            rows: Sampling states; only rows that ``apply`` has left out are checked.
            token_ids, values: (n,) the argmax of each row and its logit; changed in place.
        """
        for at, row in enumerate(rows):
            if row.constraint is None or self.precedes(row) or row.constraint.error is not None:
                continue
            if not row.constraint.allows(int(token_ids[at])):
                token_ids[at], values[at] = argmax_allowed(logits[at].numpy(), row.constraint.mask())

    def precedes(self, row: SamplingState) -> bool:
        """Whether a row needs its mask before a token is chosen."""
        # Rows below min_tokens need the mask, because the allowed end depends on it.
        can_check_argmax = self._can_check_argmax and row.greedy and not row.is_below_min_tokens
        return row.constraint is not None and not can_check_argmax

    def close(self) -> None:
        """End the thread."""
        self.finish()
        self._thread.shutdown()


def narrow_ids(row: SamplingState) -> npt.NDArray[np.int64] | None:
    """Return the (e,) few allowed tokens of a row; None: the row's token is drawn from masked logits."""
    if row.greedy or row.uses_chain or row.constraint is None or row.constraint.error is not None:
        return None
    mask = row.constraint.mask()
    return mask.ids if mask.allows and 0 < len(mask.ids) <= NARROW else None


def argmax_allowed(logits: npt.NDArray[np.float32], mask: TokenMask) -> tuple[int, float]:
    """Return the argmax of the allowed tokens, the lowest of equal ids, and its logit; -inf if no token is allowed.

    Args:
        logits: (V,), may be overwritten.
    """
    if not mask.allows:
        logits[mask.ids] = -math.inf
        token_id = int(logits.argmax())
        return token_id, float(logits[token_id])
    if not len(mask.ids):
        return 0, -math.inf
    allowed = logits[mask.ids]
    at = int(allowed.argmax())
    return int(mask.ids[at]), float(allowed[at])


def apply_by_row(logits: npt.NDArray[np.float32], masks: Sequence[tuple[int, TokenMask]]) -> None:
    """Apply masks on the CPU with numpy, which is faster than torch's masked_fill."""
    for at, mask in masks:
        row = logits[at]
        if mask.allows:
            kept = row[mask.ids]
            row.fill(-math.inf)
            row[mask.ids] = kept
        else:
            row[mask.ids] = -math.inf


def apply_at_once(logits: torch.Tensor, masks: Sequence[tuple[int, TokenMask]]) -> None:
    """Apply masks on a device with a few calls for all rows."""
    allowed = [(at, mask.ids) for at, mask in masks if mask.allows]
    refused = [(at, mask.ids) for at, mask in masks if not mask.allows]
    if allowed:
        places = entries(allowed, logits.device)
        kept = logits[places]
        logits[upload_ids([at for at, _ in allowed], logits.device)] = -math.inf
        logits[places] = kept
    if refused:
        logits[entries(refused, logits.device)] = -math.inf


def _compute(constraints: Sequence[TokenConstraint]) -> None:
    for constraint in constraints:
        try:
            constraint.mask()
        except Exception as error:
            logger.exception("a mask could not be computed")
            constraint.error = constraint.error or f"the mask could not be computed ({type(error).__name__})"
