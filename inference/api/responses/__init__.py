"""Serve OpenAI's Responses API over HTTP."""
