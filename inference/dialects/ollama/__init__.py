"""Ollama's API: requests."""
