"""Serve Anthropic's Messages API over HTTP."""
