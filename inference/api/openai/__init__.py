"""HTTP endpoints of OpenAI's API."""
