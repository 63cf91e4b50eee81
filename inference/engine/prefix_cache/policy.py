"""Choose the positions of a sequence at which prefill stops for a snapshot of its recurrent state.

A snapshot can only be taken where a prefill chunk ends, so each costs a step of its own.
"""

from __future__ import annotations

SNAPSHOT_INTERVAL = 64
"""Distance of the positions near the end of a prompt: what a prompt with another ending computes again at most."""

MIN_GAP = 16
"""Two snapshots closer than this aren't worth a step."""

DECODE_INTERVAL = 256
"""Distance of the positions while tokens are generated, where a snapshot costs its copy only."""


def snapshot_positions(start: int, stop: int, num_known: int, *, num_slots: int) -> list[int]:
    """Positions for a sequence whose tokens from ``start`` to ``stop`` are going to be computed.

    The last token's is where the same prompt, sent again, can begin. Those before it, on a grid that all prompts share,
    serve prompts that end differently; the place where the prompt leaves what is known serves the next one that leaves
    there, too.

    Args:
        num_known: Tokens that agree with an earlier sequence, whether their state is here or not.
        num_slots: Snapshots that there is room for; with few, the grid is left out.

    Returns:
        Ascending, above ``start`` and below ``stop``.
    """
    last = stop - 1
    found = [num_known] if start + MIN_GAP <= num_known <= last else []
    # Where only a few tokens differ, the place before them serves the repetition as well.
    if last > start and (not found or last - num_known >= MIN_GAP):
        found.append(last)
    if stop - start >= 3 * SNAPSHOT_INTERVAL:
        nearest = (last - MIN_GAP) // SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL
        for position in (nearest, nearest - SNAPSHOT_INTERVAL)[: num_slots // 8]:
            if position >= start + MIN_GAP and all(abs(position - other) >= MIN_GAP for other in found):
                found.append(position)
    return sorted(found)


def aligned(start: int, stop: int) -> int:
    """Where to end a chunk that the step's budget cuts short: on the grid, if that costs little."""
    rounded = stop // SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL
    return rounded if rounded - start >= SNAPSHOT_INTERVAL else stop


def is_worth_keeping(position: int, last: int) -> bool:
    """Whether to keep the state where a chunk ends anyway.

    Args:
        last: Position of the sequence's latest snapshot.
    """
    return position % SNAPSHOT_INTERVAL == 0 and position - last >= DECODE_INTERVAL
