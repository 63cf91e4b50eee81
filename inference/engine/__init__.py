"""Generate tokens by continuous batching over token ids; independent of text."""
