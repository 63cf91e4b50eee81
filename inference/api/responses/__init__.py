"""HTTP endpoints of OpenAI's Responses API."""
