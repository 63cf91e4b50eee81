"""Continuous batching over token ids; knows no text."""
