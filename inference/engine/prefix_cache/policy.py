"""Choose the positions of a sequence at which prefill stops for a snapshot of its recurrent state.

A snapshot can only be taken at the end of a prefill chunk, so each snapshot costs a step of its own.
"""

from __future__ import annotations

SNAPSHOT_INTERVAL = 64
"""Distance of the positions near a prompt's end: the most tokens that a prompt with another end computes again."""

MIN_GAP = 16
"""Minimum distance of two snapshots; a closer one would cost a step for little reuse."""

DECODE_INTERVAL = 256
"""Distance of the positions during decode, where a snapshot costs a copy only."""


def snapshot_positions(start: int, stop: int, num_known: int, *, num_slots: int) -> list[int]:
    """Return the snapshot positions of a sequence whose tokens from ``start`` to ``stop`` will be computed.

    The position before the last token serves the same prompt, sent again. Positions before it, on a grid that all
    prompts share, serve prompts with another end. The position where the prompt diverges from earlier sequences serves
    later prompts that diverge there.

    Args:
        num_known: Number of first tokens that agree with an earlier sequence, with or without cached state.
        num_slots: Number of snapshot slots; with few slots the grid is left out.

    Returns:
        Positions in ascending order, above ``start`` and below ``stop``.
    """
    last = stop - 1
    found = [num_known] if start + MIN_GAP <= num_known <= last else []
    # If only a few last tokens differ, the position before them also serves the same prompt.
    if last > start and (not found or last - num_known >= MIN_GAP):
        found.append(last)
    if stop - start >= 3 * SNAPSHOT_INTERVAL:
        nearest = (last - MIN_GAP) // SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL
        for position in (nearest, nearest - SNAPSHOT_INTERVAL)[: num_slots // 8]:
            if position >= start + MIN_GAP and all(abs(position - other) >= MIN_GAP for other in found):
                found.append(position)
    return sorted(found)


def aligned(start: int, stop: int) -> int:
    """Return the end of a chunk that the token budget cuts: on the grid, if the chunk keeps a grid interval."""
    rounded = stop // SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL
    return rounded if rounded - start >= SNAPSHOT_INTERVAL else stop


def is_snapshot_due(position: int, last: int) -> bool:
    """Whether to take a snapshot at the end of a step, at no stop of its own.

    Args:
        last: Position of the sequence's latest snapshot.
    """
    return position % SNAPSHOT_INTERVAL == 0 and position - last >= DECODE_INTERVAL
