"""Anthropic's Messages API: requests and events."""
