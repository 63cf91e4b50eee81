"""Serve OpenAI's API over HTTP."""
