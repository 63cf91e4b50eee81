"""Find earlier occurrences of the last tokens of a sequence of token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]


def repeats_of_end(token_ids: TokenIds, max_length: int) -> tuple[TokenIds, TokenIds]:
    """Find the earlier positions after which the sequence's last tokens repeat, with the number of agreeing tokens.

    Args:
        token_ids: (t,) The sequence.
        max_length: No more tokens than this are compared.

    Returns:
        (p,) positions, ascending: the tokens before such a position agree with the end of the sequence; and (p,) how
        many do, from 1 to ``max_length``.
    """
    num_tokens = len(token_ids)
    if num_tokens < 2 or max_length < 1:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing
    positions = np.flatnonzero(token_ids[:-1] == token_ids[-1]) + 1
    lengths = np.ones(len(positions), dtype=np.int64)
    longer = np.arange(len(positions))
    for length in range(2, max_length + 1):
        longer = longer[positions[longer] >= length]
        longer = longer[token_ids[positions[longer] - length] == token_ids[num_tokens - length]]
        if not len(longer):
            break
        lengths[longer] = length
    return positions, lengths
