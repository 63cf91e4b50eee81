"""Read requests and write events of Anthropic's Messages API."""
