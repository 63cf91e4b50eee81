"""Translate each API: a request body to a plan, events to a response; no HTTP, queue or database."""
