"""Which copy of a sequence's states another one may overwrite, where no slot is left."""

from __future__ import annotations

import pytest

from inference.engine.prefix_cache.cached_sequence import CachedSequence
from inference.engine.request import CacheBreakpoint


@pytest.mark.parametrize(
    ("taken", "position", "replaced"),
    [
        ((), 512, 0),
        ((256, 512), 768, 256),
        ((300, 512), 768, 512),
        ((300, 450), 768, 0),
        ((300, 450), 900, 450),
        ((300, 450), 600, 450),
        ((300, 600), 900, 0),
        ((450,), 900, 450),
        ((300,), 600, 300),
    ],
)
def test_a_copy_is_overwritten_by_none_that_is_less_likely_to_be_reused(taken, position, replaced) -> None:
    """300 and 600 are breakpoints, 450 is the junction, 900 a planned stop, and the others are periodic."""
    sequence = CachedSequence(
        b"",
        junction=450,
        stops=[600, 900],
        breakpoints=[CacheBreakpoint(300, 60), CacheBreakpoint(600, 60)],
        taken=dict.fromkeys(taken, 1),
    )
    assert sequence.replaced_by(position) == replaced
