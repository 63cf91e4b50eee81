"""UnusableRows: find the requests whose chunk of a prompt has a row with NaN or infinity.

One rule: rows without a sampled token are looked at, as nothing else tells; the logits of the others do. A masked
product multiplies what comes later by zero, which leaves NaN: one such token makes the rows before it in its chunk
unusable too. Their states look like those of a prefix that other requests share, so the prefix cache gets tokens only
once it is known that their rows are usable (``CachedSequence.has_unknown``).

On a CPU that is known at once. A step waits once for a device, for its tokens: the flags come with them, and those of
a step without tokens with the tokens of a later step.
"""

from __future__ import annotations

from typing import Any

import torch

from inference.engine.device import fetch
from inference.engine.running_request import Request
from inference.engine.sampling.sampler import numerical_error
from inference.engine.scheduler import SchedulerOutput


class UnusableRows:
    """Set the error of requests with unusable rows.

    Args:
        reads_later: Whether flags wait for the next ``fetch``, as a read waits for the device.
    """

    def __init__(self, *, reads_later: bool) -> None:
        self._reads_later = reads_later
        self._flags: list[tuple[torch.Tensor, list[tuple[Request, slice]]]] = []

    def look(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """Compute the flags of a step that has rows without a sampled token.

        Args:
            hidden: (T, h) hidden rows of the step.
        """
        unusable = torch.isfinite(hidden.sum(-1, dtype=torch.float32)).logical_not_()
        found: list[tuple[Request, slice]] = []
        row, is_sampling, is_ending = 0, False, False
        for item in step.scheduled:
            request, num_sampled = item.request, item.num_sampled
            if item.num_tokens > num_sampled:
                found.append((request, slice(row, row + item.num_tokens)))
                if request.cached is not None:
                    request.cached.has_unknown = True
            row += item.num_tokens
            is_sampling, is_ending = is_sampling or num_sampled > 0, is_ending or item.reaches_end
        # Whoever has ended needs no flags; without this, steps without tokens could pile them up.
        self._flags = [flags for flags in self._flags if not all(request.has_ended for request, _ in flags[1])]
        self._flags.append((unusable, found))
        if not self._reads_later or (is_ending and not is_sampling):  # what ends without a token needs its flags now
            self.fetch()

    def fetch(self, *tensors: torch.Tensor) -> tuple[list[Any], ...]:
        """``device.fetch`` these tensors, and all flags with them."""
        if not self._flags:
            return fetch(*tensors) if tensors else ()
        lists = fetch(*tensors, *(flags for flags, _ in self._flags))
        for flags, (_, found) in zip(lists[len(tensors) :], self._flags, strict=True):
            for request, rows in found:
                if any(flags[rows]):
                    request.error = request.error or numerical_error()
                if request.cached is not None:
                    request.cached.has_unknown = False
        self._flags.clear()
        return lists[: len(tensors)]
