"""SavedState: the state after a sequence's tokens, in host memory, apart from any engine.

The prefix cache keeps states for as long as there is room. A saved state belongs to its owner instead: a request
brings it along and goes on behind its tokens. Its recurrent part has the same size whatever the number of tokens; its
paged part grows by ``StateAccess.token_bytes`` a token.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inference.engine.config import blocks_for
from inference.engine.prefix_cache.state_access import Payload, StateAccess

DIGEST_BYTES = 32


class CopyCancelled(Exception):
    """Raised by the ``check`` of a copy whose request has ended."""


def _go_on() -> None:
    """The ``check`` of a copy that nothing ends."""


@dataclass(frozen=True, eq=False)
class SavedState:
    """The state after ``token_ids``.

    Attributes:
        token_ids: The tokens whose state this is; at least one.
        blocks: Their paged state: the payloads of all full blocks in order, then of the rows of the last one.
        slot: Their recurrent state.
    """

    token_ids: tuple[int, ...]
    blocks: Payload
    slot: Payload

    @cached_property
    def digest(self) -> bytes:
        """Digest of the three; computed at the first use, because that takes longer than the engine's copy."""
        digest = hashlib.blake2b(array("q", self.token_ids).tobytes(), digest_size=DIGEST_BYTES)
        for part in (self.blocks, self.slot):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part.data)
        return digest.digest()

    @property
    def size_bytes(self) -> int:
        """Bytes of the state, without its tokens."""
        return self.blocks.nbytes + self.slot.nbytes


def read_state(
    access: StateAccess,
    blocks: Sequence[int],
    slot: int,
    token_ids: Sequence[int],
    check: Callable[[], None] = _go_on,
) -> SavedState:
    """Copy the state of a sequence, which has no part in steps meanwhile; thread-safe.

    Args:
        blocks: The sequence's blocks; not used if the model has no paged state.
        slot: The sequence's slot, which holds the state after exactly ``token_ids``.
        check: Called before each block; ends the copy by an exception.
    """
    width, count = access.block_size, len(token_ids)
    paged = np.empty(count * access.token_bytes, np.uint8)
    for number in range(blocks_for(count, width) if access.token_bytes else 0):
        check()
        rows = min(width, count - number * width)
        begin = number * width * access.token_bytes
        paged[begin : begin + rows * access.token_bytes] = access.read_block(blocks[number], rows)
    fixed = access.read_slot(slot) if access.slot_bytes else np.empty(0, np.uint8)
    return SavedState(tuple(token_ids), paged, fixed)


def write_state(
    access: StateAccess, blocks: Sequence[int], slot: int, state: SavedState, check: Callable[[], None] = _go_on
) -> None:
    """Put a saved state into the blocks, which hold all its tokens, and into the slot of a sequence; as ``read_state``.

    After an exception of ``check`` a part of the blocks is written.
    """
    width, count = access.block_size, len(state.token_ids)
    for number in range(blocks_for(count, width) if access.token_bytes else 0):
        check()
        rows = min(width, count - number * width)
        begin = number * width * access.token_bytes
        access.write_block(blocks[number], state.blocks[begin : begin + rows * access.token_bytes], rows)
    if access.slot_bytes:
        access.write_slot(slot, state.slot)
