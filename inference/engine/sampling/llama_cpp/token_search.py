"""Find earlier occurrences of the last tokens of a sequence of token ids.

A repeat length belongs to a position p > 0 of the sequence: how many tokens before p agree with the tokens at the end
of the sequence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]
RepeatLengths = npt.NDArray[np.int32]


def repeat_lengths(token_ids: TokenIds) -> RepeatLengths:
    """Return the (t,) repeat lengths of a sequence of t tokens, 0 for position 0; the time is linear in t.

    Source: the Z algorithm of Gusfield 1997, Algorithms on Strings, Trees and Sequences, section 1.4, on the reversed
    sequence.
    """
    lengths = np.zeros(len(token_ids), dtype=np.int32)
    if len(token_ids) < 2:
        return lengths
    reversed_ids = token_ids[::-1].tolist()
    size = len(reversed_ids)
    found = [0] * size
    begin = end = 0  # of the match that reaches furthest: its tokens agree with the first ones
    for at in (np.flatnonzero(token_ids[-2::-1] == token_ids[-1]) + 1).tolist():
        length = min(found[at - begin], end - at) if at < end else 0
        while at + length < size and reversed_ids[at + length] == reversed_ids[length]:
            length += 1
        found[at] = length
        if at + length > end:
            begin, end = at, at + length
    lengths[1:] = found[:0:-1]
    return lengths


def advance_repeat_lengths(lengths: RepeatLengths, token_ids: TokenIds, token_id: int) -> RepeatLengths:
    """Return the (t + 1,) repeat lengths after ``token_id`` follows the (t,) ``token_ids`` with ``lengths``."""
    advanced = np.zeros(len(token_ids) + 1, dtype=np.int32)
    np.multiply(lengths + 1, token_ids == token_id, out=advanced[1:])
    return advanced
