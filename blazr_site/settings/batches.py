"""Batches: how many lines there may be, how many run at once, and whether anybody is told of their end."""

from __future__ import annotations

from blazr_site.settings import env

BLAZR_BATCH_MAX_LINES = env.required_integer(
    "BLAZR_BATCH_MAX_LINES", 50_000, low=1, high=1_000_000, help="Most lines in the input file of a batch."
)
BLAZR_BATCH_MAX_INPUTS = env.required_integer(
    "BLAZR_BATCH_MAX_INPUTS",
    50_000,
    low=1,
    high=10_000_000,
    help="Most inputs to embed in all lines of a batch together.",
)
BLAZR_BATCH_MAX_OPEN = env.required_integer(
    "BLAZR_BATCH_MAX_OPEN", 100, low=1, high=100_000, help="Most unfinished batches of one API key."
)
BLAZR_BATCH_WINDOW = env.required_integer(
    "BLAZR_BATCH_WINDOW", 128, low=1, high=4096, help="Most lines of batches that a worker holds at once."
)
BLAZR_WEBHOOKS: str = (
    env.text(
        "BLAZR_WEBHOOKS",
        "off",
        choices=("off", "public", "any"),
        help="Whether batches may name a URL to call at their end; public: https and public addresses only; any: "
        "http and private addresses too.",
    )
    or "off"
)
