"""OpenAI's Responses API: items, events and conversions."""
