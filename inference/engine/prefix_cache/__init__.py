"""Find and keep the state of prompt prefixes, in memory and on disk."""
