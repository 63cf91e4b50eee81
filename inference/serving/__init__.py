"""Serve one request in the web process, from a plan to its last event; independent of API formats."""
