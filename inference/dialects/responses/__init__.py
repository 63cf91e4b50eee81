"""Read requests and write events of OpenAI's Responses API."""
