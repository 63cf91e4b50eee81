"""Read numbers out of the addresses of pages."""

from __future__ import annotations

DEFAULT_CONTEXT = 4096
"""Tokens of a sequence where neither an address nor a worker says how many."""


def number_of(text: str | None, default: int, low: int, high: int) -> int:
    """Return a number of the address; ``default`` for anything that isn't one of the range."""
    if text and text.isascii() and text.isdecimal() and len(text) < 17 and low <= int(text) <= high:
        return int(text)
    return default
