"""Serve blazr's own endpoints: keys, usage, jobs, aliases, lifecycle, tokenising, probes."""
