"""Settings of batches: whether webhooks may be called at their end."""

from __future__ import annotations

from blazr_site.settings import read

BLAZR_WEBHOOKS: str = read.text(
    "BLAZR_WEBHOOKS",
    "off",
    choices=("off", "public", "any"),
    help="Whether batches may name a URL to call at their end; public: https and public addresses only; any: http "
    "and private addresses too.",
)
