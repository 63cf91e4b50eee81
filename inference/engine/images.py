"""ImageRows: compute the rows of a step's pictures with the vision encoder."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import torch

from inference.engine.device import is_memory_error, upload
from inference.engine.request import ImageSpan
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from inference.errors import GenerationFailed
from inference.modelling.forward_batch import EmbeddedRows
from inference.modelling.vision.encoder import ImageEncoder

logger = logging.getLogger(__name__)

MAX_KEPT_BYTES = 256 << 20
"""Bytes of rows that are kept for later chunks, and for other requests with the same pictures."""


class ImageRows:
    """Compute the rows of pictures when their first tokens are scheduled.

    A picture is computed by itself, so that its rows don't depend on the rest of the step. Its rows are kept for the
    next chunks of its prompt; if they were dropped meanwhile, they are computed again.

    Args:
        encoder: The vision encoder of the model.

    Attributes:
        num_encoded: Number of pictures computed so far.
    """

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self.num_encoded = 0

    def rows_of_step(self, step: SchedulerOutput) -> EmbeddedRows | None:
        """Return the rows of a step that are pictures' and not tokens'; None: there are none.

        A request with a picture for which there is no memory gets an error: the step goes on for the others.
        """
        if not any(item.request.source.images for item in step.scheduled):
            return None
        places: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        values: list[torch.Tensor] = []
        first_row = 0
        for item in step.scheduled:
            for span, start, stop in _computed_spans(item):
                try:
                    rows = self._rows(span)
                except Exception as error:
                    if not is_memory_error(error):
                        raise
                    logger.warning("an image of request %s ran out of memory: %s", item.request.request_id, error)
                    item.request.error = GenerationFailed(
                        "the server ran out of memory for an image of this request; try a smaller one."
                    )
                    break  # the request ends with this step, whatever its rows are
                values.append(rows[start - span.start : stop - span.start])
                places.append(np.arange(start, stop) + first_row - item.num_computed_tokens)
            first_row += item.num_tokens
        if not values:
            return None
        joined = torch.cat(values)
        return EmbeddedRows(upload(np.concatenate(places), joined.device), joined)

    def _rows(self, span: ImageSpan) -> torch.Tensor:
        """Return the rows (num_tokens, h) of a picture."""
        rows = self._kept.get(span.digest)
        if rows is None:
            # A copy, because the array may be read-only.
            rows = self._encoder(torch.from_numpy(np.array(span.pixels)))
            assert rows.shape[0] == span.num_tokens, (rows.shape, span.num_tokens)
            self.num_encoded += 1
            self._kept[span.digest] = rows
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > MAX_KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(span.digest)
        return rows


def _computed_spans(item: ScheduledRequest) -> Iterator[tuple[ImageSpan, int, int]]:
    """Yield the pictures that a share of a step has tokens of, each with their first position and the one after."""
    for span in item.request.source.images:
        start, stop = max(span.start, item.num_computed_tokens), min(span.stop, item.stop)
        if start < stop:
            yield span, start, stop


def whole_spans(item: ScheduledRequest) -> tuple[tuple[int, int], ...]:
    """Return the positions (start, stop) of the pictures in a share whose tokens attend to each other both ways."""
    return tuple((start, stop) for span, start, stop in _computed_spans(item) if span.is_whole)
