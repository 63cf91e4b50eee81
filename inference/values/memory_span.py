"""Limit of a text whose memory is measured, for the process that asks and the one that reads."""

from __future__ import annotations

MAX_TOKENS = 4096
"""Longest text that is read: attention weights and decays of all rows are looked at."""
