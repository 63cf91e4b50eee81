"""Saved states of the API: rows with names over files of the file store."""
