"""Programs of others against a real server, each in a virtual environment of its own: ``make test-clients``."""
