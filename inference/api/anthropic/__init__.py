"""HTTP endpoints of Anthropic's Messages API."""
