"""Schedules: at given times, run a file as a batch, or load or unload a model."""
