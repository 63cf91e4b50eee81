"""Tokenisers, chat templates and incremental decoding."""
