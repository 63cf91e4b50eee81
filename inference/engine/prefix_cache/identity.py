"""Ids by which the prefix cache tells tokens apart: those of the vocabulary, and for pictures ids of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from inference.engine.request import ImageSpan


def identity_ids(token_ids: Sequence[int], images: Sequence[ImageSpan]) -> list[int]:
    """Return ids that are equal where two prompts have the same tokens or the same part of the same picture.

    A picture's tokens have ids above all vocabularies, derived from its digest: equal placeholders of different
    pictures never share state.
    """
    ids = list(token_ids)
    for span in images:
        words = np.frombuffer(hashlib.shake_128(span.digest).digest(8 * span.num_tokens), dtype="<u8")
        ids[span.start : span.stop] = ((words >> np.uint64(2)) | np.uint64(1 << 62)).tolist()
    return ids
