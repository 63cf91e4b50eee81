"""Parts of a memory beside one another."""

from __future__ import annotations

from models_registry.memory_bar import BAR_WIDTH, bar_parts


def test_parts_fill_the_bar_by_their_share() -> None:
    parts = bar_parts([("weights", "weights", 1), ("nothing", "used", 0), ("free", "free", 2)])
    assert [(part["x"], part["width"]) for part in parts] == [(0, 333), (333, 0), (333, 667)]
    assert sum(part["width"] for part in parts) == BAR_WIDTH


def test_no_memory_has_no_bar() -> None:
    assert bar_parts([("weights", "weights", 0)]) == []
