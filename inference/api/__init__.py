"""Serve HTTP: URLs, views and schemas, a folder per API."""
